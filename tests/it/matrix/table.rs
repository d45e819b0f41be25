//! `docs/compatibility.md`, written from the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::cells::{Cell, Revision, Shape};
use super::features::{Feature, Outcome};
use super::rules::claim;

const HEAD: &str = "\
# Compatibility

What a client of each revision gets from an upstream of each revision through the gateway, whatever
carries the two. `make compatibility` tries every cell and writes this page; `make test` tries a
selection in which every two revisions, carriers and kinds of endpoint meet.

";

/// The whole page.
pub(super) fn page() -> String {
    let cells = Cell::all();
    let mut page = HEAD.to_owned();
    axes(&mut page, &cells);
    let (same, different): (Vec<Feature>, Vec<Feature>) = Feature::ALL
        .iter()
        .copied()
        .partition(|feature| everywhere(*feature, &cells).is_some());
    page.push_str(
        "\n## The same everywhere\n\n| what | comes to | because |\n| --- | --- | --- |\n",
    );
    for feature in same {
        let (_, why) = everywhere(feature, &cells).unwrap();
        let outcome = entry(feature, &cells);
        writeln!(page, "| {} | {outcome} | {why} |", feature.words()).unwrap();
    }
    page.push_str("\n## Different between revisions\n\nRows are clients, columns are upstreams; – where it cannot arise.\n");
    for feature in different {
        section(&mut page, feature, &cells);
    }
    gaps(&mut page, &cells);
    page
}

fn axes(page: &mut String, cells: &[Cell]) {
    let mut list = |name: &str, values: BTreeSet<&'static str>| {
        let values: Vec<_> = values.into_iter().collect();
        writeln!(page, "* {name}: {}", values.join("; ")).unwrap();
    };
    list(
        "clients",
        cells.iter().map(|cell| cell.client.wire()).collect(),
    );
    list("over", cells.iter().map(|cell| cell.front.name()).collect());
    list(
        "upstreams",
        cells.iter().map(|cell| cell.upstream.wire()).collect(),
    );
    list("over", cells.iter().map(|cell| cell.back.name()).collect());
    let shapes = [
        "one upstream as it is",
        "two upstreams with the same names, merged",
    ];
    list("endpoints", shapes.into());
}

/// The outcome of a feature, if equal in every cell where the feature can occur, and if the feature can occur between
/// any two revisions.
fn everywhere(feature: Feature, cells: &[Cell]) -> Option<(Outcome, &'static str)> {
    let claims = cells.iter().filter_map(|cell| claim(feature, *cell));
    let some: BTreeSet<_> = claims.map(|claim| (claim.outcome, claim.why)).collect();
    let pairs = |arising: bool| -> BTreeSet<_> {
        cells
            .iter()
            .filter(|cell| !arising || claim(feature, **cell).is_some())
            .map(|cell| (cell.client, cell.upstream))
            .collect()
    };
    (some.len() == 1 && pairs(true) == pairs(false))
        .then(|| some.into_iter().next())
        .flatten()
}

fn section(page: &mut String, feature: Feature, cells: &[Cell]) {
    let upstreams: BTreeSet<_> = cells.iter().map(|cell| cell.upstream).collect();
    let clients: BTreeSet<_> = cells.iter().map(|cell| cell.client).collect();
    let mut words = feature.words().to_owned();
    if let Some(first) = words.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    write!(page, "\n### {words}\n\n|").unwrap();
    for upstream in &upstreams {
        write!(page, " | {}", upstream.wire()).unwrap();
    }
    page.push_str(" |\n| ---");
    page.push_str(&" | ---".repeat(upstreams.len()));
    page.push_str(" |\n");
    let mut reasons = BTreeSet::new();
    for client in clients {
        write!(page, "| **{}**", client.wire()).unwrap();
        for upstream in &upstreams {
            let between = between(cells, client, *upstream);
            write!(page, " | {}", entry(feature, &between)).unwrap();
            let claims = between.iter().filter_map(|cell| claim(feature, *cell));
            let told = claims.filter(|claim| !claim.why.is_empty());
            reasons.extend(told.map(|claim| (claim.outcome, claim.why)));
        }
        page.push_str(" |\n");
    }
    if !reasons.is_empty() {
        page.push('\n');
    }
    for (outcome, why) in reasons {
        writeln!(page, "* {outcome}: {why}").unwrap();
    }
}

/// The cells between two revisions.
fn between(cells: &[Cell], client: Revision, upstream: Revision) -> Vec<Cell> {
    let between = cells
        .iter()
        .filter(|cell| cell.client == client && cell.upstream == upstream);
    between.copied().collect()
}

/// The outcome of a feature in these cells, by carrier where carriers make a difference.
fn entry(feature: Feature, cells: &[Cell]) -> String {
    let mut outcomes: BTreeMap<Option<Outcome>, Vec<Cell>> = BTreeMap::new();
    for cell in cells {
        let outcome = claim(feature, *cell).map(|claim| claim.outcome);
        outcomes.entry(outcome).or_default().push(*cell);
    }
    let word = |outcome: &Option<Outcome>| match outcome {
        Some(outcome) => outcome.to_string(),
        None => "–".to_owned(),
    };
    if let [outcome] = &outcomes.keys().collect::<Vec<_>>()[..] {
        return word(outcome);
    }
    let told = outcomes.iter().filter(|(outcome, _)| outcome.is_some());
    let told: Vec<_> = told
        .map(|(outcome, these)| match where_it_is(these, cells) {
            place if place.is_empty() => word(outcome),
            place => format!("{} ({place})", word(outcome)),
        })
        .collect();
    told.join("; ")
}

/// An axis: the values on it that the given cells have.
type Axis = fn(&[Cell]) -> BTreeSet<&'static str>;

/// Describes how the cells in `some` differ from `all`.
fn where_it_is(some: &[Cell], all: &[Cell]) -> String {
    let fronts: Axis = |cells| cells.iter().map(|cell| cell.front.name()).collect();
    let backs: Axis = |cells| cells.iter().map(|cell| cell.back.name()).collect();
    let shapes: Axis = |cells| {
        let name = |cell: &Cell| match cell.shape {
            Shape::Pure => "one upstream",
            Shape::Merged => "merged",
        };
        cells.iter().map(name).collect()
    };
    let mut places: Vec<String> = Vec::new();
    let axes: [(&str, Axis); 3] = [("from ", fronts), ("over ", backs), ("", shapes)];
    for (word, axis) in axes {
        let (here, there) = (axis(some), axis(all));
        if here != there {
            let here: Vec<_> = here.into_iter().collect();
            places.push(format!("{word}{}", here.join(" or ")));
        }
    }
    places.join(", ")
}

/// Known gaps between the gateway and the rules.
fn gaps(page: &mut String, cells: &[Cell]) {
    let mut gaps: BTreeMap<(Feature, Outcome, Outcome, &str), Vec<Cell>> = BTreeMap::new();
    for feature in Feature::ALL {
        for cell in cells {
            if let Some(claim) = claim(*feature, *cell)
                && let Some((today, why)) = claim.gap
            {
                let gap = (*feature, claim.outcome, today, why);
                gaps.entry(gap).or_default().push(*cell);
            }
        }
    }
    if gaps.is_empty() {
        return;
    }
    page.push_str("\n## Known gaps\n\n");
    for ((feature, outcome, today, why), cells) in gaps {
        writeln!(
            page,
            "* {}: {today} instead of {outcome}, {why} ({} cells, such as {})",
            feature.words(),
            cells.len(),
            cells[0]
        )
        .unwrap();
    }
}
