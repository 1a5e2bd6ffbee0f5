//! Ghosts: how many are made, taken and stopped.

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::occupant::OccupantId;
use farfork_scheduler::{GhostOrder, GhostRef, Ledger, NodeId, USUAL_MB};

use crate::bed::{Default, FREE, image, ledger, node, one_by_one};

const S: u64 = 1_000_000;
const FULL: Memory = Memory { used_bytes: 95, budget_bytes: 100 };

/// A ledger of two nodes, and its first.
fn two() -> (Ledger, NodeId) {
    let ledger = ledger(one_by_one(), &["a", "b"]);
    let a = node(&ledger, "a");
    (ledger, a)
}

/// Makes what was ordered.
fn make(ledger: &mut Ledger, orders: &[GhostOrder], bytes: u64) {
    assert!(orders.iter().all(|order| !ledger.made(order.id, Some(bytes))));
}

/// The ghosts of these orders.
fn refs(node: NodeId, orders: &[GhostOrder]) -> Vec<GhostRef> {
    orders.iter().map(|order| GhostRef { node, id: order.id }).collect()
}

/// Four starts of an image that each took 100 ms and would take 100 us in a ghost with it.
fn used(ledger: &mut Ledger, node: NodeId, now_us: u64) {
    let f = image(ledger, 1);
    for _ in 0..4 {
        ledger.take_attached(node, &f, now_us);
        ledger.record_start(node, f.image, 100_000, false);
    }
}

#[test]
fn surplus_empty_ghosts_of_a_burst_are_stopped() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    let order = |ledger: &mut Ledger, now_us| ledger.order_empty(a, USUAL_MB, now_us, &advice);
    let first = order(&mut ledger, 0);
    assert_eq!((first.len(), first[0].bytes), (1, None));
    assert_eq!(order(&mut ledger, 0), [], "it is being made");
    make(&mut ledger, &first, 400 << 10);
    assert_eq!(ledger.take_empty(a, USUAL_MB, 0), Some(first[0].id));
    (0..4).for_each(|_| assert_eq!(ledger.take_empty(a, USUAL_MB, 0), None));
    let burst = order(&mut ledger, 0);
    make(&mut ledger, &burst, 400 << 10);
    let ids: Vec<u64> = burst.iter().map(|order| order.id).collect();
    assert_eq!((ids.len(), ledger.ghosts_on(a).collect::<Vec<_>>()), (6, ids));
    assert_eq!(ledger.surplus(FREE, 31 * S, &advice), [], "it may come again");
    let surplus = ledger.surplus(FREE, 91 * S, &advice);
    assert_eq!((surplus, ledger.waiting_empty(a, USUAL_MB)), (refs(a, &burst[1..]), 1));
    let only = ledger.idle_ghosts(a, 91 * S);
    let id = OccupantId::ghost(burst[0].id);
    let (bytes, saves_us, uses_per_hour) = (400 << 10, 30_000, 5);
    assert_eq!(only, [Idle { id: id.clone(), bytes, saves_us, uses_per_hour }]);
    let ids = [id, OccupantId::instance(burst[0].id + 1), OccupantId::ghost(99)];
    let b = node(&ledger, "b");
    assert_eq!(ledger.withdraw(b, &ids, 91 * S), (vec![], 0), "it is not there");
    assert_eq!(ledger.withdraw(a, &ids, 91 * S), (refs(a, &burst[..1]), 400 << 10));
    assert_eq!(ledger.withdraw(a, &ids, 91 * S), (vec![], 0));
    assert_eq!(order(&mut ledger, 91 * S), [], "the room is for an instance");
    assert_eq!(ledger.order_empty(b, USUAL_MB, 91 * S, &advice).len(), 1);
    assert_eq!(order(&mut ledger, 92 * S).len(), 1);
    let about = advice.about.into_inner();
    assert_eq!(about.last().unwrap(), "empty-ghosts a/256");
}

#[test]
fn empty_ghosts_with_unusual_limits_are_stopped_when_none_was_taken_for_long() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    assert_eq!(ledger.take_empty(a, 64, 0), None);
    let orders = ledger.order_empty(a, 64, 0, &advice);
    assert_eq!(orders.len(), 2);
    make(&mut ledger, &orders[..1], 1);
    assert_eq!((ledger.status(a).empty_ghosts, ledger.waiting_empty(a, 64)), (1, 1));
    assert_eq!(ledger.surplus(FREE, 601 * S, &advice), [], "one is being made");
    assert!(!ledger.made(orders[1].id, None));
    assert_eq!(ledger.surplus(FREE, 599 * S, &advice), []);
    assert_eq!(ledger.surplus(FREE, 600 * S, &advice), refs(a, &orders[..1]));
    assert!(ledger.made(orders[0].id, Some(1)), "it is not known any more");
}

#[test]
fn as_many_wait_as_bursts_take_if_that_saves_enough() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    let (b, f) = (node(&ledger, "b"), image(&mut ledger, 1));
    let order = |ledger: &mut Ledger| ledger.order_attached(a, &f, FREE, 0, &advice);
    assert_eq!(order(&mut ledger), [], "it was never started");
    ledger.take_attached(a, &f, 0);
    assert_eq!(order(&mut ledger), [], "the saving is not known");
    assert!(advice.about.borrow().is_empty(), "without anything to decide");
    (0..3).for_each(|_| drop(ledger.take_attached(a, &f, 0)));
    ledger.record_start(a, f.image, 100_000, false);
    let orders = order(&mut ledger);
    assert_eq!((orders.len(), orders[0].bytes), (4, Some(3 << 20)));
    assert_eq!(*advice.about.borrow(), ["attached-ghosts guest/f on a"]);
    assert_eq!(order(&mut ledger), [], "they are being made");
    make(&mut ledger, &orders[..2], 4 << 20);
    assert!(!ledger.made(orders[2].id, None));
    assert_eq!((ledger.waiting_with(a, f.image), ledger.status(a).attached_ghosts), (2, 2));
    assert_eq!(ledger.take_attached(a, &f, 0), (Some(orders[1].id), vec![]));
    assert_eq!(ledger.take_attached(b, &f, 0).0, None, "it is another node's");
    // One is being made, one waits, and five were taken at once.
    assert_eq!(order(&mut ledger).len(), 3);
    // If they save nothing, none are made.
    (0..40).for_each(|_| ledger.record_start(a, f.image, 1_000_000, true));
    assert_eq!(order(&mut ledger), []);
}

#[test]
fn waiting_ghosts_can_be_evicted_by_their_worth() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    used(&mut ledger, a, 0);
    let f = image(&mut ledger, 1);
    let orders = ledger.order_attached(a, &f, FREE, 0, &advice);
    make(&mut ledger, &orders[..2], 4 << 20);
    let idle = |order: &GhostOrder| Idle {
        id: OccupantId::ghost(order.id),
        bytes: 4 << 20,
        saves_us: 100_000 - 100,
        uses_per_hour: 2,
    };
    assert_eq!(ledger.idle_ghosts(a, 0), [idle(&orders[0]), idle(&orders[1])]);
    let ids = [OccupantId::ghost(orders[1].id), OccupantId::ghost(orders[2].id)];
    let withdrawn = ledger.withdraw(a, &ids, 0);
    assert_eq!(withdrawn, (refs(a, &orders[1..2]), 4 << 20), "the other is being made");
    assert_eq!(ledger.waiting_with(a, f.image), 1);
}

#[test]
fn ghosts_with_an_old_image_are_stopped() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    used(&mut ledger, a, 0);
    let [was, is] = [1, 2].map(|cid| image(&mut ledger, cid));
    let old = ledger.order_attached(a, &was, FREE, 0, &advice);
    make(&mut ledger, &old[..1], 4 << 20);
    assert_eq!(ledger.take_attached(a, &is, 0), (None, refs(a, &old[..1])));
    assert!(ledger.made(old[1].id, Some(1)), "it has the old one");
    let none = ledger.order_attached(a, &was, FREE, 0, &advice);
    assert_eq!(none, [], "no instance is started of it");
    // Two with the old image are still being made, and five were taken at once.
    let new = ledger.order_attached(a, &is, FREE, 0, &advice);
    assert_eq!((new.len(), new[0].bytes), (3, Some(3 << 20)));
    make(&mut ledger, &new[..1], 4 << 20);
    let g = ledger.image("guest/g");
    assert_eq!(ledger.forget_image(g), []);
    assert_eq!(ledger.forget_image(is.image), refs(a, &new[..1]));
    assert_eq!(ledger.known_image("guest/f"), None);
    assert!(!ledger.set_aside(new[1].id, 1), "it is not wanted any more");
    assert!(ledger.made(new[1].id, Some(1)));
    assert!(!ledger.made(new[2].id, None));
    assert_eq!(ledger.status(a).attached_ghosts, 0);
}

#[test]
fn surplus_attached_ghosts_go_after_a_while_and_at_once_where_memory_is_short() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    let f = image(&mut ledger, 1);
    let make_all = |ledger: &mut Ledger, now_us| {
        let orders = ledger.order_attached(a, &f, FREE, now_us, &advice);
        assert_eq!(orders.len(), 4);
        make(ledger, &orders, 4 << 20);
    };
    used(&mut ledger, a, 0);
    make_all(&mut ledger, 0);
    assert_eq!(ledger.surplus(FREE, 0, &advice), []);
    ledger.record_usage(a, None);
    assert_eq!(ledger.surplus(FULL, 0, &advice), [], "its node does not answer");
    ledger.record_usage(a, Some(&[].into()));
    assert_eq!(ledger.surplus(FULL, 0, &advice).len(), 4, "pinned images could not be removed");
    make_all(&mut ledger, 0);
    ledger.record_measured(a, Some(950 << 20));
    assert_eq!(ledger.surplus(FREE, 0, &advice).len(), 4);
    ledger.record_measured(a, Some(0));
    make_all(&mut ledger, 0);
    assert_eq!(ledger.surplus(FREE, 61 * S, &advice).len(), 4, "the burst was long ago");
    used(&mut ledger, a, 61 * S);
    make_all(&mut ledger, 61 * S);
    assert_eq!(ledger.forget_ghosts(a).len(), 4);
    assert_eq!((ledger.waiting_with(a, f.image), ledger.status(a).attached_ghosts), (0, 0));
    assert_eq!(ledger.ghosts_on(a).count(), 0);
}

#[test]
fn ghosts_of_a_lost_node_are_forgotten_and_made_anew() {
    let ((mut ledger, a), advice) = (two(), Default::new());
    let orders = ledger.order_empty(a, USUAL_MB, 0, &advice);
    make(&mut ledger, &orders, 1);
    ledger.record_usage(a, None);
    assert_eq!(ledger.forget_ghosts(a), refs(a, &orders));
    assert_eq!(ledger.order_empty(a, USUAL_MB, 0, &advice), [], "it does not answer");
    ledger.record_usage(a, Some(&[].into()));
    assert_eq!(ledger.order_empty(a, USUAL_MB, 0, &advice).len(), 1);
}
