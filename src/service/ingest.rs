//! The way in for samples: a bounded queue that never makes its caller wait and keeps its books (I4).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use super::cell::lock;
use super::persist::Disk;
use super::trainer::ToTrainer;
use super::{IngestCounts, Offered, now};
use crate::types::Sample;

/// The bit of a [`Budget`] that says it takes nothing more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Room of a bounded queue, counted in samples. Reserving and closing are one atomic word, so nothing that was reserved
/// is ever left behind by a receiver that leaves when the queue is closed and empty.
#[derive(Debug)]
pub(super) struct Budget {
    state: AtomicUsize,
    capacity: usize,
}

impl Budget {
    pub(super) fn new(capacity: usize) -> Self {
        Budget { state: AtomicUsize::new(0), capacity: capacity.min(CLOSED - 1) }
    }

    /// Reserves up to `wanted` places; returns how many were free. 0 when closed.
    pub(super) fn reserve(&self, wanted: usize) -> usize {
        let mut granted = 0;
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            granted = if state & CLOSED == 0 { wanted.min(self.capacity.saturating_sub(state)) } else { 0 };
            (granted > 0).then_some(state + granted)
        });
        granted
    }

    /// Gives places back.
    pub(super) fn release(&self, places: usize) {
        self.state.fetch_sub(places, Ordering::AcqRel);
    }

    /// Takes nothing more from now on.
    pub(super) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Places taken now.
    pub(super) fn taken(&self) -> usize {
        self.state.load(Ordering::Acquire) & !CLOSED
    }
}

/// The sending side of the queue, with its counters.
pub(super) struct Ingest {
    budget: Arc<Budget>,
    trainer: mpsc::Sender<ToTrainer>,
    disk: Option<Disk>,
    /// Accepted in the lives before this one.
    accepted_before: u64,
    accepted: AtomicU64,
    dropped: AtomicU64,
}

/// Rows refused before they could be offered, by reason.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<&'static str, u64>>);

impl Refusals {
    pub(super) fn add(&self, reason: &'static str, rows: u64) {
        if rows > 0 {
            *lock(&self.0).entry(reason).or_default() += rows;
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.0).clone()
    }
}

impl Ingest {
    pub(super) fn new(
        budget: Arc<Budget>,
        trainer: mpsc::Sender<ToTrainer>,
        disk: Option<Disk>,
        accepted_before: u64,
    ) -> Self {
        Ingest { budget, trainer, disk, accepted_before, accepted: AtomicU64::new(0), dropped: AtomicU64::new(0) }
    }

    /// Queues as many of the samples as there is room for; the rest is dropped and counted. Never waits.
    pub(super) fn offer(&self, mut samples: Vec<Sample>) -> Offered {
        let offered = samples.len();
        let mut accepted = self.budget.reserve(offered);
        if accepted > 0 {
            samples.truncate(accepted);
            let batch = Arc::new(samples);
            // The disk first: once the trainer has drained its queue at shutdown, all of it is also in the disk's queue.
            if let Some(disk) = &self.disk {
                disk.log(&batch);
            }
            if self.trainer.send(ToTrainer::Samples(batch, now())).is_err() {
                self.budget.release(accepted);
                accepted = 0;
            }
        }
        let dropped = offered - accepted;
        self.accepted.fetch_add(accepted as u64, Ordering::Relaxed);
        self.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        Offered { accepted, dropped }
    }

    /// Hands the trainer a question; `false` when it has stopped.
    pub(super) fn ask(&self, question: ToTrainer) -> bool {
        self.trainer.send(question).is_ok()
    }

    /// Takes nothing more from now on.
    pub(super) fn close(&self) {
        self.budget.close();
    }

    /// The books; refusals are kept elsewhere and left empty.
    pub(super) fn counts(&self) -> IngestCounts {
        IngestCounts {
            accepted: self.accepted_before + self.accepted.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            refused: BTreeMap::new(),
            queued: self.budget.taken(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample_record::tests::sample;
    use super::*;
    use proptest::prelude::*;

    fn ingest(capacity: usize) -> (Ingest, Arc<Budget>, mpsc::Receiver<ToTrainer>) {
        let budget = Arc::new(Budget::new(capacity));
        let (sender, receiver) = mpsc::channel();
        (Ingest::new(budget.clone(), sender, None, 100), budget, receiver)
    }

    fn take(receiver: &mpsc::Receiver<ToTrainer>, budget: &Budget) -> usize {
        match receiver.try_recv() {
            Ok(ToTrainer::Samples(batch, _)) => {
                budget.release(batch.len());
                batch.len()
            }
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn i4_offered_is_accepted_plus_dropped_and_all_accepted_arrive(
            capacity in 1..50usize,
            steps in prop::collection::vec((0..30usize, any::<bool>()), 0..40),
        ) {
            let (ingest, budget, receiver) = ingest(capacity);
            let (mut offered, mut accepted, mut dropped, mut received) = (0, 0, 0, 0);
            for (rows, drain) in steps {
                let outcome = ingest.offer((0..rows).map(|i| sample(i as u32)).collect());
                prop_assert_eq!(outcome.accepted + outcome.dropped, rows);
                offered += rows;
                accepted += outcome.accepted;
                dropped += outcome.dropped;
                prop_assert!(ingest.counts().queued <= capacity);
                if drain {
                    received += take(&receiver, &budget);
                }
            }
            let counts = ingest.counts();
            prop_assert_eq!(counts.accepted, 100 + accepted as u64);
            prop_assert_eq!(counts.dropped, dropped as u64);
            prop_assert_eq!(offered, accepted + dropped);
            while budget.taken() > 0 {
                received += take(&receiver, &budget);
            }
            prop_assert_eq!(received, accepted);
        }
    }

    #[test]
    fn a_flood_from_many_threads_never_blocks_and_its_books_balance() {
        // Nobody receives: an offer that waited for room would hang this test.
        let (ingest, budget, receiver) = ingest(1_000);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        ingest.offer((0..7).map(sample).collect());
                    }
                });
            }
        });
        let counts = ingest.counts();
        assert_eq!((counts.accepted, counts.dropped, counts.queued), (100 + 1_000, 8 * 200 * 7 - 1_000, 1_000));
        let mut received = 0;
        while budget.taken() > 0 {
            received += take(&receiver, &budget);
        }
        assert_eq!(received, 1_000);
    }

    #[test]
    fn a_closed_queue_drops_and_says_so() {
        let (ingest, budget, _receiver) = ingest(10);
        ingest.offer(vec![sample(0)]);
        ingest.close();
        assert_eq!(ingest.offer(vec![sample(1), sample(2)]), Offered { accepted: 0, dropped: 2 });
        assert_eq!(budget.taken(), 1);
    }

    #[test]
    fn a_trainer_that_is_gone_makes_a_drop_and_not_a_loss() {
        let (ingest, budget, receiver) = ingest(10);
        drop(receiver);
        assert_eq!(ingest.offer(vec![sample(1)]), Offered { accepted: 0, dropped: 1 });
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let refusals = Refusals::default();
        refusals.add("no_outcome", 3);
        refusals.add("no_outcome", 2);
        refusals.add("feature_out_of_range", 1);
        refusals.add("never", 0);
        assert_eq!(refusals.counts(), BTreeMap::from([("feature_out_of_range", 1), ("no_outcome", 5)]));
    }
}
