//! Instances, and the memory that they take.

use std::collections::BTreeMap;

use farfork_policy::growth::OneByOne;
use farfork_policy::occupant::OccupantId;
use farfork_policy::settings::Growth;
use farfork_scheduler::{Claim, Ledger, PauseChange};
use farfork_types::LocalShare;

use crate::bed::{Default, FREE};
use crate::bed::{
    all_at_once, busy, claim, facts, image, ledger, like_others, node, one_by_one, seen, usage,
    used,
};

#[test]
fn set_aside_memory_counts_until_released() {
    for growth in [all_at_once(), one_by_one()] {
        check_set_aside(ledger(growth, &["a", "b"]));
    }
}

fn check_set_aside(mut ledger: Ledger) {
    let (a, advice) = (node(&ledger, "a"), Default::new());
    // Ghosts to be made: one was wanted at each of four moments.
    let f = image(&mut ledger, 1);
    ledger.take_attached(a, &f, 0);
    ledger.record_start(a, f.image, 100_000_000, false);
    (0..3).for_each(|_| drop(ledger.take_attached(a, &f, 0)));
    let ghosts = ledger.order_attached(a, &f, FREE, 0, &advice);
    let [ghost, other, ..] = ghosts[..] else { panic!("{ghosts:?}") };
    let idle = ledger.reserve(a, claim(300)).unwrap();
    ledger.started(idle, 7);
    ledger.end_work(idle);
    assert_eq!(ledger.promote(idle), None, "it was not measured yet");
    seen(&mut ledger, [(7, usage(20, 150))]);
    assert_eq!(used(&ledger), [20, 0]);
    let promotion = ledger.promote(idle).unwrap();
    assert_eq!((promotion.node, promotion.pid, used(&ledger)), (a, 7, vec![170, 0]));
    assert!(ledger.set_aside(ghost.id, 700 << 20));
    assert!(!ledger.set_aside(ghost.id, 1), "once");
    assert!(!ledger.set_aside(other.id, 200 << 20), "there is no room");
    assert_eq!(["a", "b"].map(|name| ledger.has_set_aside(node(&ledger, name))), [true, false]);
    assert!(ledger.begin_work(idle), "of its 280 more, 150 are promised to it already");
    assert_eq!(used(&ledger), [1000, 0]);
    ledger.promoted(idle);
    ledger.promote(idle).expect("it may take as much itself");
    assert_eq!(used(&ledger), [1000, 0]);
    ledger.end_work(idle);
    assert_eq!(used(&ledger), [870, 0]);
    ledger.promoted(idle);
    assert_eq!(used(&ledger), [720, 0]);
    let _other = ledger.reserve(a, claim(200)).unwrap();
    assert_eq!(ledger.promote(idle), None, "there is no room");
    assert!(ledger.counted(ghost.id) && !ledger.counted(ghost.id));
    assert_eq!(used(&ledger), [220, 0]);
}

#[test]
fn a_share_takes_its_part_of_what_an_instance_may_take() {
    let mut ledger = ledger(all_at_once(), &["a"]);
    let a = node(&ledger, "a");
    let one = ledger.reserve(a, claim(300)).unwrap();
    let half = LocalShare::from_permille(500).unwrap();
    assert_eq!(ledger.promote_to(one, None, half), None, "it has not started");
    ledger.started(one, 7);
    assert!(ledger.promote_to(one, None, half).is_some(), "although it was not measured yet");
    assert_eq!(used(&ledger), [300], "busy, it may take that in any case");
    ledger.end_work(one);
    seen(&mut ledger, [(7, usage(20, 100))]);
    assert_eq!(used(&ledger), [170]);
    seen(&mut ledger, [(7, usage(200, 100))]);
    assert_eq!(used(&ledger), [300], "its limit holds for both");
    ledger.share_changed(one);
    assert_eq!(used(&ledger), [200]);
}

#[test]
fn a_changed_share_takes_what_it_adds() {
    let mut ledger = ledger(all_at_once(), &["a"]);
    let a = node(&ledger, "a");
    let [one, other] = [(); 2].map(|()| ledger.reserve(a, claim(300)).unwrap());
    let [half, most] = [500, 800].map(|permille| LocalShare::from_permille(permille).unwrap());
    ledger.started(one, 7);
    ledger.end_work(one);
    seen(&mut ledger, [(7, usage(20, 100))]);
    let before = used(&ledger);
    assert!(ledger.promote_to(one, Some(half), most).is_some());
    assert_eq!(used(&ledger), [before[0] + 90]);
    assert_eq!(ledger.promote_to(one, Some(half), most), None, "the first is not counted yet");
    ledger.share_changed(one);
    assert!(ledger.promote_to(one, Some(most), half).is_some());
    assert_eq!(used(&ledger), before, "a smaller share takes nothing");
    // Nothing more fits, but a smaller share does.
    while ledger.reserve(a, claim(10)).is_some() {}
    assert_eq!(ledger.promote_to(one, None, most), None);
    assert!(ledger.promote_to(one, Some(most), half).is_some());
    assert!(ledger.end(other) && ledger.end(one));
    assert_eq!(ledger.promote_to(one, Some(most), half), None, "it has ended");
}

#[test]
fn a_promotion_and_a_changed_share_keep_their_memory_apart() {
    let mut ledger = ledger(all_at_once(), &["a"]);
    let a = node(&ledger, "a");
    let one = ledger.reserve(a, claim(300)).unwrap();
    let [half, most] = [500, 800].map(|permille| LocalShare::from_permille(permille).unwrap());
    ledger.started(one, 7);
    ledger.end_work(one);
    seen(&mut ledger, [(7, usage(20, 100))]);
    let before = used(&ledger);
    assert!(ledger.promote_to(one, Some(half), most).is_some());
    assert!(ledger.promote(one).is_some(), "its call has ended while the share is changed");
    assert_eq!(used(&ledger), [before[0] + 90 + 100]);
    ledger.share_changed(one);
    assert_eq!(used(&ledger), [before[0] + 100], "pages are still being promoted");
    assert_eq!(ledger.promote_to(one, Some(half), most), None, "the promotion is not counted yet");
    ledger.promoted(one);
    assert_eq!(used(&ledger), before);
    assert!(ledger.promote_to(one, Some(half), most).is_some() && ledger.promote(one).is_some());
    ledger.promoted(one);
    assert_eq!(used(&ledger), [before[0] + 90], "the share is still being changed");
    assert_eq!(ledger.promote_to(one, Some(half), most), None, "nor is that counted yet");
    ledger.share_changed(one);
    assert_eq!(used(&ledger), before);
}

#[test]
fn unmeasured_instances_count_at_their_limit_and_idle_ones_at_what_they_hold() {
    let mut ledger = ledger(one_by_one(), &["b", "a"]);
    let a = node(&ledger, "a");
    let [first, second] = [300, 300].map(|mb| ledger.reserve(a, claim(mb)).unwrap());
    assert_eq!(used(&ledger), [610, 0], "each may take all of it at once");
    ledger.started(first, 7);
    assert_eq!(ledger.location(first), Some((a, 7)));
    assert_eq!((ledger.location(second), facts(&ledger)[0].starting), (None, 1));
    seen(&mut ledger, [(7, usage(20, 5)), (8, usage(1, 5))]);
    assert_eq!(ledger.usage(first), Some(usage(20, 5)));
    assert_eq!(
        used(&ledger),
        [330, 0],
        "20 and 300 are taken, which are given back before 280 more"
    );
    ledger.end_work(first);
    assert_eq!(used(&ledger), [320, 0]);
    assert!(ledger.begin_work(first));
    assert!(ledger.end(second) && !ledger.end(second));
    assert_eq!(used(&ledger), [300, 0]);
    assert!(ledger.record_usage(a, None));
    assert_eq!(used(&ledger), [0], "only b answers");
    assert_eq!(
        ledger.ids().map(|node| ledger.status(node).answers).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn the_kernels_count_replaces_the_sum_of_instances() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let only = ledger.reserve(a, claim(300)).unwrap();
    ledger.record_measured(a, Some(50 << 20));
    ledger.record_measured(a, None);
    assert_eq!(used(&ledger), [350]);
    ledger.started(only, 7);
    seen(&mut ledger, [(7, usage(40, 5))]);
    ledger.record_measured(a, Some(90 << 20));
    assert_eq!(used(&ledger), [350], "of its 300 it has 40, which are among the 90");
    ledger.end_work(only);
    assert_eq!(used(&ledger), [90]);
}

#[test]
fn many_are_busy_where_each_may_reach_its_limit_in_turn() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let large = busy(&mut ledger, 1, 900, 5);
    assert_eq!(used(&ledger), [900]);
    let need = |ledger: &Ledger, claim| {
        ledger.node_facts(claim, None)[0].need_bytes.map(|bytes| bytes >> 20)
    };
    assert_eq!(need(&ledger, claim(128)), Some(0), "what it takes at once it gives back before");
    let small = like_others(128, 2);
    assert_eq!(need(&ledger, small), Some(0), "as before");
    let all: Vec<u64> = (0..50).map(|_| ledger.reserve(a, small).unwrap()).collect();
    assert_eq!(used(&ledger), [900]);
    assert_eq!(ledger.reserve(a, claim(900)), None);
    ledger.end(large);
    assert_eq!(used(&ledger), [236], "100 that they take, 126 for one of them, and the slack");
    all.into_iter().for_each(|one| assert!(ledger.end(one)));
    assert_eq!(used(&ledger), [0]);
}

#[test]
fn with_defaults_fifty_small_ones_are_busy_beside_a_large_one() {
    let growth = Growth::OneByOne(OneByOne::default());
    let mut ledger = Ledger::new(["a".to_owned()], 1024 << 20, growth, 0);
    busy(&mut ledger, 1, 900, 5);
    let a = node(&ledger, "a");
    let started = (0..50).filter(|_| ledger.reserve(a, like_others(128, 2)).is_some());
    assert_eq!(started.count(), 50);
    assert_eq!(used(&ledger), [900], "105 taken, 795 free for the large one");
}

#[test]
fn all_at_once_reserves_all_limits() {
    let mut ledger = ledger(all_at_once(), &["a"]);
    let a = node(&ledger, "a");
    let (_first, second) = (busy(&mut ledger, 7, 300, 20), busy(&mut ledger, 8, 500, 20));
    assert_eq!(used(&ledger), [800]);
    assert_eq!(ledger.node_facts(like_others(128, 2), None)[0].need_bytes, Some(128 << 20));
    assert_eq!(ledger.reserve(a, claim(201)), None);
    ledger.record_measured(a, Some(600 << 20));
    assert_eq!(ledger.growth_facts(a), None, "none pauses");
    ledger.end_work(second);
    assert!(!ledger.begin_work(second), "of 1000 600 are taken, and 280 promised");
}

#[test]
fn paused_instances_know_how_long_they_were_paused() {
    let mut ledger = ledger(one_by_one(), &["a", "b"]);
    let [a, b] = ["a", "b"].map(|name| node(&ledger, name));
    let (one, other) = (busy(&mut ledger, 7, 600, 10), busy(&mut ledger, 8, 600, 10));
    assert_eq!(ledger.growth_facts(b), None, "no instance is busy there");
    assert!(ledger.is_crowded(a), "590 and 590 do not fit");
    ledger.record_measured(a, Some(500 << 20));
    let facts = ledger.growth_facts(a).unwrap();
    let workers: Vec<u64> =
        facts.workers.iter().map(|worker| worker.demand.held_bytes >> 20).collect();
    assert_eq!((facts.memory.used_bytes >> 20, workers), (500, vec![10, 10]));
    let ids = [OccupantId::instance(other), OccupantId::ghost(one)];
    let change = |paused| PauseChange { id: other, pid: 8, paused };
    assert_eq!(ledger.pause(b, &ids, 10), [], "it is not there");
    assert_eq!(ledger.pause(a, &ids, 10), [change(true)]);
    assert_eq!(ledger.pause(a, &ids, 20), [], "it is paused already");
    ledger.undo_pause(other, true, 30);
    assert_eq!(ledger.pause(a, &ids, 100), [change(true)], "it was not");
    assert_eq!(ledger.status(a).paused, 1);
    ledger.end(one);
    assert!(ledger.growth_facts(a).unwrap().workers[0].is_paused, "it is alone, and still paused");
    assert_eq!(ledger.paused_us(other, 150), 20 + 50);
    assert_eq!(ledger.pause(a, &[], 200), [change(false)]);
    assert!(ledger.growth_facts(a).is_some(), "idle memory may be what it needs");
    ledger.record_measured(a, Some(100 << 20));
    assert_eq!((ledger.growth_facts(a), ledger.paused_us(other, 999)), (None, 120));
}

#[test]
fn a_slower_pool_counts_as_busy() {
    let mut ledger = ledger(one_by_one(), &["a", "b"]);
    let [a, b] = ["a", "b"].map(|name| node(&ledger, name));
    let busy = |ledger: &Ledger| {
        facts(ledger).iter().map(|node| node.pool_busy_permille).collect::<Vec<_>>()
    };
    assert_eq!(busy(&ledger), [None, None]);
    ledger.record_read_rate(a, Some(8_000));
    assert_eq!(busy(&ledger), [Some(0), None]);
    ledger.record_read_rate(a, Some(2_000));
    assert_eq!(busy(&ledger), [Some(750), None]);
    assert_eq!(ledger.status(a).pool_read_bytes_per_s, Some(2_000));
    ledger.record_read_rate(a, Some(20_000));
    ledger.record_read_rate(b, Some(0));
    assert_eq!(busy(&ledger), [Some(0), Some(1000)]);
    ledger.record_read_rate(a, Some(15_000));
    ledger.record_read_rate(b, None);
    assert_eq!(busy(&ledger), [Some(250), None]);
}

#[test]
fn no_more_is_promised_than_is_free() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let [first, second] = [600, 390].map(|mb| ledger.reserve(a, claim(mb)).unwrap());
    assert_eq!(ledger.reserve(a, claim(1)), None);
    ledger.started(first, 7);
    seen(&mut ledger, [(7, usage(100, 5))]);
    ledger.end_work(first);
    ledger.end(second);
    ledger.record_measured(a, Some((500 << 20) + 1));
    assert!(!ledger.begin_work(first), "it may want 500 more, and a byte is lacking");
    ledger.record_measured(a, Some(500 << 20));
    assert!(ledger.begin_work(first));
    ledger.end(first);
    assert!(!ledger.begin_work(first), "it has ended");
}

#[test]
fn no_instance_becomes_busy_on_an_overcommitted_node() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let small = busy(&mut ledger, 7, 100, 50);
    ledger.end_work(small);
    let large = busy(&mut ledger, 8, 800, 10);
    ledger.record_measured(a, Some(300 << 20));
    assert_eq!(facts(&ledger)[0].memory.free_below(1000), 0, "790 and 300");
    assert!(!ledger.begin_work(small), "though the large one needs less after it");
    ledger.end(large);
    assert!(ledger.begin_work(small));
}

#[test]
fn an_unmeasured_idle_instance_needs_its_limit_again() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let resting = ledger.reserve(a, claim(690)).unwrap();
    ledger.started(resting, 7);
    ledger.end_work(resting);
    ledger.record_measured(a, Some(400 << 20));
    assert!(!ledger.begin_work(resting), "600 are free");
    ledger.record_measured(a, Some(310 << 20));
    assert!(ledger.begin_work(resting));
}

/// Which of the busy instances cannot be paused.
fn going(ledger: &Ledger) -> Vec<bool> {
    let facts = ledger.growth_facts(ledger.ids().next().unwrap());
    let facts = facts.expect("they may take more than there is");
    facts.workers.iter().map(|worker| worker.goes_on).collect()
}

#[test]
fn starting_and_checkpointed_instances_are_not_paused() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let (one, other) = (busy(&mut ledger, 7, 600, 10), busy(&mut ledger, 8, 600, 10));
    let starting = ledger.reserve(a, like_others(600, 1)).unwrap();
    ledger.prevent_pause(one, true);
    assert_eq!(going(&ledger), [true, false, true]);
    assert_eq!(ledger.pause(a, &[OccupantId::instance(starting)], 0), [], "it has no pid yet");
    ledger.prevent_pause(one, false);
    assert_eq!(going(&ledger), [false, false, true]);
    ledger.end(other);
}

#[test]
fn frozen_instances_are_idle_and_not_paused() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let one = busy(&mut ledger, 7, 600, 100);
    assert_eq!(ledger.freeze(one), None, "it is busy");
    ledger.end_work(one);
    assert_eq!(ledger.freeze(one), Some((a, 7)));
    let other = busy(&mut ledger, 8, 600, 100);
    assert!(ledger.begin_work(one));
    assert_eq!(going(&ledger), [true, false], "it is about to be thawed");
    ledger.thawed(one);
    assert_eq!(going(&ledger), [false, false]);
    let change = |paused| PauseChange { id: other, pid: 8, paused };
    assert_eq!(ledger.pause(a, &[OccupantId::instance(other)], 0), [change(true)]);
    ledger.end_work(other);
    assert_eq!(ledger.freeze(other), None, "it is paused");
    assert_eq!(ledger.pause(a, &[], 0), [change(false)]);
    assert_eq!(ledger.freeze(other), Some((a, 8)));
    ledger.end(other);
    assert_eq!((ledger.freeze(other), ledger.location(other)), (None, None), "it has ended");
}

#[test]
fn a_frozen_instance_is_not_used_while_its_node_does_not_answer() {
    let mut ledger = ledger(one_by_one(), &["a"]);
    let a = node(&ledger, "a");
    let [one, other] = [7, 8].map(|pid| busy(&mut ledger, pid, 100, 10));
    [one, other].into_iter().for_each(|idle| ledger.end_work(idle));
    ledger.freeze(one);
    ledger.record_usage(a, None);
    assert!(!ledger.begin_work(one) && ledger.begin_work(other));
    ledger.record_usage(a, Some(&BTreeMap::new()));
    assert!(ledger.begin_work(one));
}

#[test]
fn nodes_are_found_by_name() {
    let ledger = ledger(one_by_one(), &["c", "a", "b"]);
    let names: Vec<&str> = ledger.ids().map(|node| ledger.name(node)).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(ledger.node("b").map(|node| ledger.name(node)), Some("b"));
    assert_eq!(ledger.node("x"), None);
    assert!(
        ledger.node_facts(Claim::default(), None).iter().all(|node| node.memory.used_bytes == 0)
    );
}
