//! Selection of the tried part of the matrix: all of it, unless the environment names less.

use super::cells::Cell;
use super::features::Feature;

/// Words that must occur in the text of a tried cell and feature, separated by ` & `.
#[derive(Debug, Default)]
pub(super) struct Selection {
    cells: String,
    features: String,
}

impl Selection {
    /// `DRAWBRIDGE_CELLS` and `DRAWBRIDGE_FEATURES`; an unset or empty variable excludes nothing.
    pub(super) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        Self {
            cells: variable("DRAWBRIDGE_CELLS"),
            features: variable("DRAWBRIDGE_FEATURES"),
        }
    }

    /// The cells in whose names every part of the words occurs.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells = Cell::all();
        cells.retain(|cell| has_all(&cell.to_string(), &self.cells));
        assert!(!cells.is_empty(), "no cell is {:?}", self.cells);
        cells
    }

    /// The features in whose names every part of the words occurs.
    pub(super) fn features(&self) -> Vec<Feature> {
        let mut features = Feature::ALL.to_vec();
        features.retain(|feature| has_all(feature.words(), &self.features));
        assert!(!features.is_empty(), "no feature is {:?}", self.features);
        features
    }
}

fn has_all(name: &str, words: &str) -> bool {
    words.split(" & ").all(|part| name.contains(part))
}

#[test]
fn nothing_is_left_out_unless_something_is_named() {
    let all = Selection::default();
    assert_eq!(all.cells(), Cell::all());
    assert_eq!(all.features(), Feature::ALL);
}

#[test]
fn the_line_of_a_difference_selects_its_cell_alone() {
    for cell in Cell::all() {
        let line = Selection {
            cells: cell.to_string(),
            ..Selection::default()
        };
        assert_eq!(line.cells(), [cell]);
    }
}

#[test]
fn every_one_of_several_words_selects() {
    let two = Selection {
        cells: "client 2025-06-18 & over stdio".to_owned(),
        features: "another user & cursor".to_owned(),
    };
    let cells = two.cells();
    assert!(cells.iter().all(|cell| cell.client.wire() == "2025-06-18"));
    assert!(cells.iter().all(|cell| cell.back.name() == "stdio"));
    assert_eq!(two.features(), [Feature::StolenCursor]);
}
