//! The queue between the edges and the trainer thread: bounded in samples, never waits, keeps its books (I4).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::{Flush, Flushed, IngestCounts, Offered};
use crate::training::Survey;
use crate::types::{Sample, UnixMs};

/// What the trainer thread is told.
pub enum Command {
    /// Good rows and when they were received.
    Samples(Vec<Sample>, UnixMs),
    /// Say what the store holds.
    Survey(oneshot::Sender<Survey>),
    /// Forget.
    Flush(Flush, oneshot::Sender<Flushed>),
    /// Everything sent before this has been taken; write and end.
    Stop,
}

/// The sending side.
pub struct Ingest {
    sender: Sender<Command>,
    queued: Arc<AtomicUsize>,
    capacity: usize,
    accepted: Arc<AtomicU64>,
    dropped: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

/// The trainer's side.
pub struct Intake {
    /// Commands, in order.
    pub receiver: Receiver<Command>,
    queued: Arc<AtomicUsize>,
    accepted: Arc<AtomicU64>,
}

impl Intake {
    /// Gives room back for samples taken off the queue.
    pub fn taken(&self, samples: usize) {
        self.queued.fetch_sub(samples, Ordering::Relaxed);
    }

    /// Adds what earlier processes accepted, once it has been read from disk.
    pub fn accepted_before(&self, samples: u64) {
        self.accepted.fetch_add(samples, Ordering::Relaxed);
    }
}

impl Ingest {
    /// A queue for at most `capacity` samples.
    pub fn new(capacity: usize) -> (Ingest, Intake) {
        let (sender, receiver) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::new(AtomicU64::new(0));
        let intake = Intake { receiver, queued: Arc::clone(&queued), accepted: Arc::clone(&accepted) };
        let ingest = Ingest {
            sender,
            queued,
            capacity,
            accepted,
            dropped: AtomicU64::new(0),
            refused: Mutex::new(BTreeMap::new()),
        };
        (ingest, intake)
    }

    /// Queues as many of `samples` as there is room for; the rest are counted drops.
    pub fn offer(&self, mut samples: Vec<Sample>, received_at: UnixMs) -> Offered {
        let offered = samples.len();
        let mut room = 0;
        let reserved = self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
            room = self.capacity.saturating_sub(queued).min(offered);
            Some(queued + room)
        });
        let mut accepted = if reserved.is_ok() { room } else { 0 };
        samples.truncate(accepted);
        if accepted > 0 && self.sender.send(Command::Samples(samples, received_at)).is_err() {
            self.queued.fetch_sub(accepted, Ordering::Relaxed);
            accepted = 0;
        }
        self.accepted.fetch_add(accepted as u64, Ordering::Relaxed);
        self.dropped.fetch_add((offered - accepted) as u64, Ordering::Relaxed);
        Offered { accepted, dropped: offered - accepted }
    }

    /// Counts rows that were refused before they could be offered.
    pub fn refuse(&self, reason: &'static str, rows: u64) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(reason).or_default() += rows;
    }

    /// Sends a command; false when the trainer is gone.
    pub fn send(&self, command: Command) -> bool {
        self.sender.send(command).is_ok()
    }

    /// The books.
    pub fn counts(&self) -> IngestCounts {
        IngestCounts {
            accepted: self.accepted.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            refused: self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            queued: self.queued.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Features, Observation, Promised, Role};
    use proptest::prelude::*;

    fn samples(count: usize) -> Vec<Sample> {
        let features = Features {
            kv_cache_usage: 0.0,
            input_tokens: 1,
            requests_waiting: 0,
            requests_running: 0,
            prefix_cache_score: 0.0,
            prefill_tokens_in_flight: 0,
            decode_tokens_in_flight: 0,
            encoder_matched_size: 0,
            encoder_input_size: 0,
            role: Role::Both,
        };
        let sample = Sample {
            features,
            observation: Observation { ttft_ms: Some(1.0), tpot_ms: None, output_tokens: 0 },
            endpoint: None,
            observed_at: UnixMs(0),
            dispatched_at: None,
            promised: Promised::default(),
        };
        vec![sample; count]
    }

    proptest! {
        #[test]
        fn i4_offered_is_accepted_plus_dropped_and_the_queue_is_bounded(
            capacity in 0..50usize,
            moves in prop::collection::vec((0..30usize, any::<bool>()), 0..40),
        ) {
            let (ingest, intake) = Ingest::new(capacity);
            let mut offered = 0;
            for (count, take) in moves {
                let answer = ingest.offer(samples(count), UnixMs(0));
                offered += count;
                prop_assert_eq!(answer.accepted + answer.dropped, count);
                if take && let Ok(Command::Samples(taken, _)) = intake.receiver.try_recv() {
                    intake.taken(taken.len());
                }
                let counts = ingest.counts();
                prop_assert!(counts.queued <= capacity);
                prop_assert_eq!(counts.accepted + counts.dropped, offered as u64);
            }
        }
    }

    #[test]
    fn a_trainer_that_is_gone_means_drops_not_panics() {
        let (ingest, intake) = Ingest::new(10);
        drop(intake);
        assert_eq!(ingest.offer(samples(3), UnixMs(0)), Offered { accepted: 0, dropped: 3 });
        assert_eq!(ingest.counts().queued, 0);
    }
}
