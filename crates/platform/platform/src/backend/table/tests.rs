//! All figures are in MiB.

use farfork_policy::growth::{AllAtOnce, OneByOne};

use super::*;

const SLACK: u64 = 10;

fn table(nodes: &[&str]) -> Arc<Table> {
    table_by(one_by_one(), nodes)
}

fn one_by_one() -> Growth {
    Growth::OneByOne(OneByOne { slack_bytes: SLACK << 20 })
}

fn table_by(growth: Growth, nodes: &[&str]) -> Arc<Table> {
    let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
    Arc::new(Table::new(&nodes, 1000 << 20, growth))
}

fn claim(memory_mb: u64) -> Claim {
    Claim { memory_mb, expected_bytes: None }
}

fn like_others(memory_mb: u64, expected: u64) -> Claim {
    Claim { memory_mb, expected_bytes: Some(expected << 20) }
}

fn usage(local: u64, pool: u64) -> Usage {
    Usage { local_bytes: local << 20, pool_bytes: pool << 20 }
}

fn seen<const N: usize>(table: &Table, clones: [(i32, Usage); N]) {
    assert!(!table.record_usage("a", Some(BTreeMap::from(clones))), "it has answered before");
}

fn used(table: &Table) -> Vec<u64> {
    let nodes = table.nodes(Claim::default(), |_| 0);
    nodes.iter().map(|node| node.memory.used_bytes >> 20).collect()
}

/// A started, measured and busy instance.
fn busy(table: &Arc<Table>, pid: i32, memory_mb: u64, local: u64) -> Reservation {
    let one = table.reserve("a", claim(memory_mb)).expect("there is room");
    one.started(pid);
    seen(table, [(pid, usage(local, 0))]);
    one
}

#[test]
fn set_aside_memory_counts_until_released() {
    for growth in [Growth::default(), one_by_one()] {
        check_set_aside(growth);
    }
}

fn check_set_aside(growth: Growth) {
    let table = table_by(growth, &["a", "b"]);
    let idle = table.reserve("a", claim(300)).unwrap();
    idle.started(7);
    table.end_work(idle.id);
    assert!(table.promote(idle.id).is_none(), "it was not measured yet");
    seen(&table, [(7, usage(20, 150))]);
    assert_eq!(used(&table), [20, 0]);
    let promoting = table.promote(idle.id).unwrap();
    assert_eq!((&*promoting.node, promoting.pid, used(&table)), ("a", 7, vec![170, 0]));
    let ghost = table.set_aside("a", 700 << 20).unwrap();
    assert!(table.set_aside("a", 200 << 20).is_none() && table.set_aside("b", 200).is_some());
    assert_eq!(["a", "b"].map(|node| table.has_set_aside(node)), [true, false]);
    assert!(table.begin_work(idle.id), "of its 280 more, 150 are promised to it already");
    assert_eq!(used(&table), [1000, 0]);
    drop(promoting);
    let promoting = table.promote(idle.id).expect("it may take as much itself");
    assert_eq!(used(&table), [1000, 0]);
    table.end_work(idle.id);
    assert_eq!(used(&table), [870, 0]);
    drop(promoting);
    assert_eq!(used(&table), [720, 0]);
    let _other = table.reserve("a", claim(200)).unwrap();
    assert!(table.promote(idle.id).is_none(), "there is no room");
    drop(ghost);
    assert_eq!(used(&table), [220, 0]);
}

#[test]
fn unmeasured_instances_count_at_their_limit_and_idle_ones_at_what_they_hold() {
    let table = table(&["a", "b"]);
    let first = table.reserve("a", claim(300)).unwrap();
    let second = table.reserve("a", claim(300)).unwrap();
    assert_eq!(used(&table), [610, 0], "each may take all of it at once");
    first.started(7);
    assert_eq!(table.location(first.id), Some(("a".to_owned(), 7)));
    assert_eq!(table.nodes(Claim::default(), |_| 2)[0].starting, 1);
    seen(&table, [(7, usage(20, 5)), (8, usage(1, 5))]);
    assert_eq!(table.usage(first.id), Some(usage(20, 5)));
    assert_eq!(
        used(&table),
        [330, 0],
        "20 and 300 are taken, which are given back before 280 more"
    );
    table.end_work(first.id);
    assert_eq!(used(&table), [320, 0]);
    assert!(table.begin_work(first.id));
    drop(second);
    assert_eq!(used(&table), [300, 0]);
    assert!(table.record_usage("a", None));
    assert_eq!(used(&table), [0], "only b answers");
    let answers = table.survey(|_| 0).into_iter().map(|node| node.answers);
    assert_eq!(answers.collect::<Vec<_>>(), [false, true]);
}

#[test]
fn the_kernels_count_replaces_the_sum_of_instances() {
    let table = table(&["a"]);
    let only = table.reserve("a", claim(300)).unwrap();
    table.record_measured("a", Some(50 << 20));
    table.record_measured("a", None);
    assert_eq!(used(&table), [350]);
    only.started(7);
    seen(&table, [(7, usage(40, 5))]);
    table.record_measured("a", Some(90 << 20));
    assert_eq!(used(&table), [350], "of its 300 it has 40, which are among the 90");
    table.end_work(only.id);
    assert_eq!(used(&table), [90]);
}

#[test]
fn many_are_busy_where_each_may_reach_its_limit_in_turn() {
    let table = table(&["a"]);
    let large = busy(&table, 1, 900, 5);
    assert_eq!(used(&table), [900]);
    let need = |claim| table.nodes(claim, |_| 0)[0].need_bytes.map(|bytes| bytes >> 20);
    assert_eq!(need(claim(128)), Some(0), "what it takes at once it gives back before");
    let small = like_others(128, 2);
    assert_eq!(need(small), Some(0), "as before");
    let all: Vec<Reservation> = (0..50).map(|_| table.reserve("a", small).unwrap()).collect();
    assert_eq!(used(&table), [900]);
    assert!(table.reserve("a", claim(900)).is_none());
    drop(large);
    assert_eq!(used(&table), [236], "100 that they take, 126 for one of them, and the slack");
    drop(all);
}

#[test]
fn with_defaults_fifty_small_ones_are_busy_beside_a_large_one() {
    let growth = Growth::OneByOne(OneByOne::default());
    let table = Arc::new(Table::new(&["a".to_owned()], 1024 << 20, growth));
    let _large = busy(&table, 1, 900, 5);
    let all: Vec<_> = (0..50).map(|_| table.reserve("a", like_others(128, 2)).unwrap()).collect();
    assert_eq!((all.len(), used(&table)), (50, vec![900]), "105 taken, 795 free for the large one");
}

#[test]
fn all_at_once_reserves_all_limits() {
    let table = table_by(Growth::AllAtOnce(AllAtOnce::default()), &["a"]);
    let (_first, second) = (busy(&table, 7, 300, 20), busy(&table, 8, 500, 20));
    assert_eq!(used(&table), [800]);
    assert_eq!(table.nodes(like_others(128, 2), |_| 0)[0].need_bytes, Some(128 << 20));
    assert!(table.reserve("a", claim(201)).is_none());
    table.record_measured("a", Some(600 << 20));
    assert!(table.growth("a").is_none(), "none pauses");
    table.end_work(second.id);
    assert!(!table.begin_work(second.id), "of 1000 600 are taken, and 280 promised");
}

#[test]
fn paused_instances_know_how_long_they_were_paused() {
    let table = table(&["a", "b"]);
    let (one, other) = (busy(&table, 7, 600, 10), busy(&table, 8, 600, 10));
    assert!(table.growth("b").is_none(), "no instance is busy there");
    assert!(table.wait_until_crowded("a", Duration::MAX), "590 and 590 do not fit");
    table.record_measured("a", Some(500 << 20));
    let facts = table.growth("a").unwrap();
    let workers: Vec<u64> =
        facts.workers.iter().map(|worker| worker.demand.held_bytes >> 20).collect();
    assert_eq!((facts.memory.used_bytes >> 20, workers), (500, vec![10, 10]));
    let ids = [other.id.to_string()];
    assert_eq!(table.pause("b", &ids), [], "it is not there");
    assert_eq!(table.pause("a", &ids), [PauseChange { id: other.id, pid: 8, paused: true }]);
    assert_eq!(table.pause("a", &ids), [], "it is paused already");
    table.undo_pause(other.id, true);
    assert_eq!(
        table.pause("a", &ids),
        [PauseChange { id: other.id, pid: 8, paused: true }],
        "it was not"
    );
    assert_eq!(table.survey(|_| 0)[0].paused, 1);
    drop(one);
    assert!(table.growth("a").unwrap().workers[0].is_paused, "it is alone, and still paused");
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(table.pause("a", &[]), [PauseChange { id: other.id, pid: 8, paused: false }]);
    let paused = table.paused(other.id);
    assert!(table.growth("a").is_some(), "idle memory may be what it needs");
    table.record_measured("a", Some(100 << 20));
    assert!(paused >= Duration::from_millis(2));
    assert_eq!((table.growth("a"), table.paused(other.id)), (None, paused));
    assert!(!table.wait_until_crowded("a", Duration::ZERO));
}

#[test]
fn a_slower_pool_counts_as_busy() {
    let table = table(&["a", "b"]);
    let expect = |expected: [Option<u64>; 2]| {
        let nodes = table.nodes(Claim::default(), |_| 0);
        let seen: Vec<_> = nodes.iter().map(|node| node.pool_busy_permille).collect();
        assert_eq!(seen, expected);
    };
    expect([None, None]);
    table.record_read_rate("a", Some(8_000));
    expect([Some(0), None]);
    table.record_read_rate("a", Some(2_000));
    expect([Some(750), None]);
    assert_eq!(table.survey(|_| 0)[0].pool_read_bytes_per_s, Some(2_000));
    table.record_read_rate("a", Some(20_000));
    table.record_read_rate("b", Some(0));
    expect([Some(0), Some(1000)]);
    table.record_read_rate("a", Some(15_000));
    table.record_read_rate("b", None);
    expect([Some(250), None]);
}

#[test]
fn no_more_is_promised_than_is_free() {
    let table = table(&["a"]);
    let [first, second] = [600, 390].map(|mb| table.reserve("a", claim(mb)).unwrap());
    assert!(table.reserve("a", claim(1)).is_none());
    first.started(7);
    seen(&table, [(7, usage(100, 5))]);
    table.end_work(first.id);
    drop(second);
    let ghosts = table.set_aside("a", 401 << 20).unwrap();
    assert!(!table.begin_work(first.id), "it may want 500 more, and 499 are left");
    drop(ghosts);
    assert!(table.begin_work(first.id));
    drop(first);
    assert!(!table.begin_work(1), "it has ended");
}

#[test]
fn no_instance_becomes_busy_on_an_overcommitted_node() {
    let table = table(&["a"]);
    let small = busy(&table, 7, 100, 50);
    table.end_work(small.id);
    let large = busy(&table, 8, 800, 10);
    table.record_measured("a", Some(300 << 20));
    assert!(table.nodes(Claim::default(), |_| 0)[0].memory.free_below(1000) == 0, "790 and 300");
    assert!(!table.begin_work(small.id), "though the large one needs less after it");
    drop(large);
    assert!(table.begin_work(small.id));
}

#[test]
fn an_unmeasured_idle_instance_needs_its_limit_again() {
    let table = table(&["a"]);
    let resting = table.reserve("a", claim(690)).unwrap();
    resting.started(7);
    table.end_work(resting.id);
    table.record_measured("a", Some(400 << 20));
    assert!(!table.begin_work(resting.id), "600 are free");
    table.record_measured("a", Some(310 << 20));
    assert!(table.begin_work(resting.id));
}

#[test]
fn starting_and_checkpointed_instances_are_not_paused() {
    let table = table(&["a"]);
    let (one, other) = (busy(&table, 7, 600, 10), busy(&table, 8, 600, 10));
    let _starting = table.reserve("a", like_others(600, 1)).unwrap();
    let going = table.prevent_pause(one.id);
    let goes_on = || -> Vec<bool> {
        let facts = table.growth("a").unwrap();
        facts.workers.iter().map(|worker| worker.goes_on).collect()
    };
    assert_eq!(goes_on(), [true, false, true]);
    drop(going);
    assert_eq!(goes_on(), [false, false, true]);
    drop(other);
}

#[test]
fn frozen_instances_are_idle_and_not_paused() {
    let table = table(&["a"]);
    let one = busy(&table, 7, 600, 100);
    assert_eq!(table.freeze(one.id), None, "it is busy");
    table.end_work(one.id);
    assert_eq!(table.freeze(one.id), Some(("a".to_owned(), 7)));
    let other = busy(&table, 8, 600, 100);
    assert!(table.begin_work(one.id));
    let goes_on = || {
        let facts = table.growth("a").expect("they may take more than there is");
        facts.workers.iter().map(|worker| worker.goes_on).collect::<Vec<_>>()
    };
    assert_eq!(goes_on(), [true, false], "it is about to be thawed");
    table.thawed(one.id);
    assert_eq!(goes_on(), [false, false]);
    assert_eq!(
        table.pause("a", &[other.id.to_string()]),
        [PauseChange { id: other.id, pid: 8, paused: true }]
    );
    table.end_work(other.id);
    assert_eq!(table.freeze(other.id), None, "it is paused");
    assert_eq!(table.pause("a", &[]), [PauseChange { id: other.id, pid: 8, paused: false }]);
    assert_eq!(table.freeze(other.id), Some(("a".to_owned(), 8)));
    let id = other.id;
    drop(other);
    assert_eq!((table.freeze(id), table.location(id)), (None, None), "it has ended");
}

#[test]
fn a_frozen_instance_is_not_used_while_its_node_does_not_answer() {
    let table = table(&["a"]);
    let [one, other] = [7, 8].map(|pid| busy(&table, pid, 100, 10));
    [&one, &other].into_iter().for_each(|idle| table.end_work(idle.id));
    table.freeze(one.id);
    table.record_usage("a", None);
    assert!(!table.begin_work(one.id) && table.begin_work(other.id));
    table.record_usage("a", Some(BTreeMap::new()));
    assert!(table.begin_work(one.id));
}
