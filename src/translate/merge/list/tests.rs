use super::*;
use crate::protocol::json;

fn prefix(upstream: &str) -> NamePrefix {
    NamePrefix::new(upstream.into())
}

fn merged(kind: ListKind, lists: &[(&str, &str)]) -> MergedList {
    let mut merger = ListMerger::new(kind);
    for (upstream, items) in lists {
        merger.append(&prefix(upstream), items, |_| true).unwrap();
    }
    merger.finish()
}

/// How many items a list holds.
fn shown(list: &MergedList) -> usize {
    let members = json::members(&list.result).unwrap();
    json::elements(members[0].1).unwrap().len()
}

// SPEC G-02.
#[test]
fn lists_follow_each_other_and_equal_names_stay_apart() {
    let all = merged(
        ListKind::Tools,
        &[
            ("b", r#"[ {"name":"x", "d":1.0e2} , {"name":"y"} ]"#),
            ("a", r#"[{"title":"T","name":"x"}]"#),
            ("c", "[]"),
        ],
    );
    assert_eq!(
        all.result,
        r#"{"tools":[{"name":"b__x", "d":1.0e2},{"name":"b__y"},{"title":"T","name":"a__x"}]}"#
    );
    assert_eq!(all.dropped, 0);
    assert!(all.lookalikes.is_empty());
}

#[test]
fn a_filter_sees_upstream_names_and_hides_without_a_trace() {
    let mut merger = ListMerger::new(ListKind::Prompts);
    let items = r#"[{"name":"hide"},{"name":"show"},{"name":"\u0068ide"}]"#;
    merger
        .append(&prefix("a"), items, |name| name != "hide")
        .unwrap();
    let all = merger.finish();
    assert_eq!(all.result, r#"{"prompts":[{"name":"a__show"}]}"#);
    assert_eq!(all.dropped, 0);
}

// SPEC G-03.
#[test]
fn a_failing_upstream_costs_the_others_nothing() {
    let mut merger = ListMerger::new(ListKind::Tools);
    merger
        .append(&prefix("a"), r#"[{"name":"x"}]"#, |_| true)
        .unwrap();
    assert!(
        merger
            .append(&prefix("b"), r#"[{"name":"y"},{"name":]"#, |_| true)
            .is_err()
    );
    assert!(
        merger
            .append(&prefix("b"), r#"{"name":"y"}"#, |_| true)
            .is_err()
    );
    merger
        .append(&prefix("c"), r#"[{"name":"z"}]"#, |_| true)
        .unwrap();
    let all = merger.finish();
    assert_eq!(all.result, r#"{"tools":[{"name":"a__x"},{"name":"c__z"}]}"#);
}

// SPEC G-05.
#[test]
fn flawed_items_are_dropped_and_their_neighbours_stay() {
    let large = format!(
        r#"{{"name":"l","description":"{}"}}"#,
        "x".repeat(MAX_ITEM_BYTES)
    );
    let items = [
        r#"{"name":"first"}"#,
        r#"{"name":"a","name":"b"}"#,
        r#"{"title":"nameless"}"#,
        r#"{"name":7}"#,
        r#"{"name":"\ud800"}"#,
        r#"{"name":"first"}"#,
        "null",
        &large,
        r#"{"name":"last","x":[{"y":1},"}"]}"#,
    ];
    let all = merged(
        ListKind::Tools,
        &[("up", &format!("[{}]", items.join(",")))],
    );
    assert_eq!(
        all.result,
        r#"{"tools":[{"name":"up__first"},{"name":"up__last","x":[{"y":1},"}"]}]}"#
    );
    assert_eq!(all.dropped, 7);
}

#[test]
fn an_endless_list_is_cut() {
    let items: Vec<String> = (0..MAX_ITEMS + 3)
        .map(|n| format!("{{\"name\":\"t{n}\"}}"))
        .collect();
    let all = merged(
        ListKind::Tools,
        &[("up", &format!("[{}]", items.join(",")))],
    );
    assert_eq!((shown(&all), all.dropped), (MAX_ITEMS, 3));
    let page = |numbers: std::ops::Range<usize>| format!("[{}]", items[numbers].join(","));
    let pages = [page(0..7), page(7..MAX_ITEMS), page(MAX_ITEMS..items.len())];
    let mut lists: Vec<(&str, &str)> = pages.iter().map(|page| ("up", page.as_str())).collect();
    lists.push(("other", r#"[{"name":"x"}]"#));
    let all = merged(ListKind::Tools, &lists);
    assert_eq!((shown(&all), all.dropped), (MAX_ITEMS + 1, 3));
}

#[test]
fn a_url_belongs_to_the_upstream_that_lists_it_first() {
    let all = merged(
        ListKind::Resources,
        &[
            (
                "a",
                r#"[{"uri":"https://h/x","name":"a"},{"uri":"f:x","name":"n"}]"#,
            ),
            (
                "b",
                r#"[{"uri":"https://h/x","name":"b"},{"uri":"f:x","name":"n"}]"#,
            ),
        ],
    );
    assert_eq!(
        all.result,
        r#"{"resources":[{"uri":"https://h/x","name":"a"},{"uri":"a+f:x","name":"n"},{"uri":"b+f:x","name":"n"}]}"#
    );
    assert_eq!(all.dropped, 1);
}

// SPEC G-05.
#[test]
fn names_of_another_upstream_are_not_shadowed() {
    let all = merged(
        ListKind::Tools,
        &[
            ("a", r#"[{"name":"b__x"},{"name":"b__x\n"}]"#),
            ("b", r#"[{"name":"x"}]"#),
        ],
    );
    let names = json::members(&all.result).unwrap();
    let items = json::elements(names[0].1).unwrap();
    let second = json::members(items[1]).unwrap();
    assert!(items[0].contains("\"a__b__x\"") && items[2].contains("\"b__x\""));
    assert!(json::string(second[0].1).unwrap().starts_with("a__b__x__"));
    assert_eq!(json::string(second[0].1).unwrap().len(), 64);
}

#[test]
fn look_alikes_of_one_upstream_are_named_for_a_warning() {
    let all = merged(
        ListKind::Tools,
        &[
            ("a", r#"[{"name":"read"},{"name":"rеad"},{"name":"READ"}]"#),
            ("b", r#"[{"name":"read"}]"#),
        ],
    );
    assert_eq!(shown(&all), 4);
    assert_eq!(all.lookalikes, ["a__rеad", "a__READ"]);
}
