//! The compatibility matrix: a client of every revision before an upstream of every revision over every carrier, and
//! the outcome of each feature. The expected outcome is computed by [`rules`]; any difference fails. Spec: BRIDGING §9.

mod cells;
mod client;
mod features;
mod line;
mod rules;
mod selection;
mod table;
mod world;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet, spawn_local};

use self::cells::Cell;
use self::features::{Feature, Place, observe};
use self::rules::claim;
use self::selection::Selection;
use self::world::World;
use crate::harness::peers;

/// Cells that are tried at the same time.
const AT_ONCE: usize = 8;
/// How long a feature may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Tries these features in these cells; returns the differences from the claims, a line each.
async fn differences(cells: &[Cell], features: &[Feature]) -> Vec<String> {
    let world = Arc::new(World::start(cells).await);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut tried = JoinSet::new();
    for cell in cells {
        let (world, places, cell) = (Arc::clone(&world), Arc::clone(&places), *cell);
        let features = features.to_vec();
        tried.spawn_local(async move {
            let _place = places.acquire().await;
            differences_in(&world, cell, &features).await
        });
    }
    let mut differences: Vec<String> = tried.join_all().await.into_iter().flatten().collect();
    differences.sort_unstable();
    let world = Arc::into_inner(world).expect("nobody is left in it");
    world.gw.stop().await;
    differences
}

async fn differences_in(world: &Arc<World>, cell: Cell, features: &[Feature]) -> Vec<String> {
    let opened = {
        let world = Arc::clone(world);
        spawn_local(async move { Place::open(&world, cell).await }).await
    };
    let Ok(place) = opened else {
        return vec![format!("{cell}: cannot connect")];
    };
    // `Feature::Slow` takes long and changes no shared state, so it runs beside the others.
    let (slow, others): (Vec<_>, Vec<_>) = features
        .iter()
        .partition(|feature| **feature == Feature::Slow);
    let slow = slow.into_iter().map(|slow| difference(slow, place.clone()));
    let slow: Vec<_> = slow.map(spawn_local).collect();
    let mut differences = Vec::new();
    for feature in others {
        differences.extend(difference(feature, place.clone()).await);
    }
    for slow in slow {
        differences.extend(slow.await.unwrap());
    }
    place.client.end().await;
    differences
}

/// How a feature in a place differs from the claim.
async fn difference(feature: Feature, place: Place) -> Option<String> {
    let cell = place.cell;
    let claimed = claim(feature, cell)?.today();
    let world = Arc::clone(&place.world);
    let _alone = match feature {
        Feature::ListChanged => world.alone(cell).await,
        _ => None,
    };
    let observed = spawn_local(tokio::time::timeout(LIMIT, observe(feature, place))).await;
    let seen = match observed {
        Ok(Ok(outcome)) if outcome == claimed => return None,
        Ok(Ok(outcome)) => outcome.to_string(),
        Ok(Err(_)) => "no end".to_owned(),
        Err(failed) => match failed.into_panic().downcast::<String>() {
            Ok(text) => *text,
            Err(_) => "a failed assertion".to_owned(),
        },
    };
    let feature = feature.words();
    Some(format!(
        "{feature}: {claimed} is claimed, seen is {seen}\n    {cell}"
    ))
}

async fn hold(cells: &[Cell], features: &[Feature]) {
    let differences = differences(cells, features);
    let differences = LocalSet::new().run_until(differences).await;
    assert!(
        differences.is_empty(),
        "{} differences in {} cells:\n{}",
        differences.len(),
        cells.len(),
        differences.join("\n")
    );
}

#[tokio::test]
async fn every_pair_of_revisions_and_carriers_does_what_the_rules_say() {
    hold(&Cell::pairwise(), Feature::ALL).await;
}

#[tokio::test]
#[ignore = "all cells: a part of `make soak`"]
async fn every_cell_does_what_the_rules_say() {
    let selection = Selection::from_environment();
    let (cells, features) = (selection.cells(), selection.features());
    hold(&cells, &features).await;
    // `make soak` counts them.
    eprintln!("{} cells, {} features", cells.len(), features.len());
}

#[test]
fn the_page_on_compatibility_says_what_the_rules_say() {
    let (file, page) = (peers::root().join("docs/compatibility.md"), table::page());
    if std::env::var_os("DRAWBRIDGE_WRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == page,
        "docs/compatibility.md is stale: run make compatibility"
    );
}
