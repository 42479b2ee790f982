//! Books: gangs, models, and which node is taken.

use super::*;

fn group(count: u32, gpus: u32, model: &str) -> NodeCapacity {
    NodeCapacity {
        name: "n".into(),
        count,
        gpu_model: Some(model.into()),
        gpus,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(256),
        declared: true,
    }
}
fn need(gpus: u32) -> Resources {
    Resources { gpus, gpu: vec![], cpus: MilliCpu(1000), memory: Bytes(0) }
}
fn fits(books: &Books, ranks: u32, resources: &Resources) -> Option<Vec<NodeShare>> {
    books.fit(ranks, &books.need(resources))
}

#[test]
fn a_gang_fits_whole_or_not_at_all() {
    let mut books = Books::new(&[group(2, 8, "A100-80G")]);
    let gang = fits(&books, 2, &need(8)).expect("two nodes of 8");
    let eight = books.need(&need(8));
    books.take(&gang, &eight);
    assert_eq!(fits(&books, 1, &need(1)), None);
    books.give(&gang[..1], &eight);
    assert_eq!(fits(&books, 2, &need(8)), None);
    assert_eq!(fits(&books, 2, &need(4)).expect("half nodes").len(), 2);
}

#[test]
fn the_fullest_node_that_fits_is_taken_first() {
    let mut books = Books::new(&[group(2, 8, "H100")]);
    let first = fits(&books, 1, &need(6)).expect("free");
    books.take(&first, &books.need(&need(6)));
    assert_eq!(fits(&books, 1, &need(2)).expect("fits")[0].node, first[0].node);
    assert_eq!(fits(&books, 1, &need(3)).expect("fits")[0].node, 1 - first[0].node);
}

#[test]
fn what_is_reserved_is_told_by_the_nodes_own_model() {
    let books = Books::new(&[group(2, 8, "A100-80G"), group(1, 4, "H100")]);
    let shares = fits(&books, 2, &need(6)).expect("any model will do");
    let mut sum = BTreeMap::new();
    books.by_model(&shares, &mut sum);
    assert_eq!(sum, BTreeMap::from([("A100-80G".to_owned(), 12)]));
    books.by_model(&[NodeShare { node: 99, gpus: vec![0] }, NodeShare { node: 0, gpus: vec![] }], &mut sum);
    assert_eq!(sum.len(), 1, "nothing for a node that is gone, nothing for a share without GPUs");
}

#[test]
fn models_are_not_mixed_up() {
    let books = Books::new(&[group(1, 8, "A100-40G")]);
    let want = Resources { gpu: vec!["A100-80G".into()], ..need(1) };
    assert_eq!(fits(&books, 1, &want), None);
    assert!(!fits_empty(&[group(1, 8, "L40")], 1, &Resources { gpu: vec!["L4".into()], ..need(1) }));
    assert!(fits_empty(&[group(2, 8, "H100")], 4, &need(4)));
    assert!(!fits_empty(&[group(2, 8, "H100")], 3, &need(8)));
    assert!(fits_empty(&[], 0, &need(0)));
}

#[test]
fn the_index_follows_every_change() {
    let mut books = Books::new(&[group(3, 8, "H100")]);
    let mut held = Vec::new();
    for gpus in [3, 8, 5, 2] {
        let shares = fits(&books, 1, &need(gpus)).expect("room");
        let n = books.need(&need(gpus));
        books.take(&shares, &n);
        held.push((shares, n));
    }
    let mut report = QueueReport::default();
    books.report(&mut report);
    assert_eq!(report.gpus_free["H100"], 24 - 18);
    assert_eq!(report.gpus_left["H100"], [(6, 1)].into(), "3 and 5 are on one node, 8 on one");
    for (shares, n) in held {
        books.give(&shares, &n);
    }
    books.report(&mut report);
    assert_eq!((report.gpus_free["H100"], report.gpus_total["H100"]), (24, 24));
    assert!(report.gpus_left.is_empty(), "nobody uses a node");
    assert_eq!(report.cpus_free, MilliCpu(192_000));
}

#[test]
fn what_others_hold_is_not_free_and_ours_moves_aside() {
    let held = |gpus| Held { node: 0, gpus, cpus: MilliCpu(1_000), memory: Bytes(0) };
    let mut books = Books::new(&[group(1, 4, "H100")]);
    let one = books.need(&need(1));
    books.hold(&held(3));
    assert_eq!(fits(&books, 1, &need(2)), None);
    let mut ours = vec![NodeShare { node: 0, gpus: vec![3] }, NodeShare { node: 9, gpus: vec![0] }];
    books.retake(&mut ours, &one);
    assert_eq!(ours[0].gpus, [0], "the only one that is left");
    let mut more = vec![NodeShare { node: 0, gpus: vec![1] }];
    books.retake(&mut more, &one);
    assert!(more[0].gpus.is_empty(), "there is none: {more:?}");
    books.give(&ours, &one);
    assert!(fits(&books, 1, &need(1)).is_some() && fits(&books, 1, &need(2)).is_none());
    books.hold(&held(9));
    assert_eq!(fits(&books, 1, &need(1)), None);
}

#[test]
fn what_was_needed_is_needed_in_renewed_books_too() {
    let books = Books::new(&[group(1, 4, "H100"), group(1, 4, "L4")]);
    let wanted = Resources { gpu: vec!["L4".into()], ..need(1) };
    let before = books.need(&wanted);
    let renewed = books.renewed(&[group(1, 4, "A40"), group(1, 4, "L4")]);
    assert_eq!(renewed.need(&wanted), before);
    assert_eq!(renewed.fit(1, &before).expect("fits")[0].node, 1);
}

/// What a queue report may say is bounded, and one that says more is not published at all.
#[test]
fn what_is_free_in_all_is_told_up_to_what_a_report_may_say() {
    let big = NodeCapacity { cpus: MilliCpu(1_000_000_000), memory: Bytes(1 << 59), ..group(3, 0, "X") };
    let books = Books::new(&[NodeCapacity { gpu_model: None, ..big }]);
    let mut report = QueueReport::default();
    books.report(&mut report);
    assert_eq!((report.cpus_free, report.memory_free), (MilliCpu(1_000_000_000), Bytes(1 << 60)));
}
