//! The latest samples of one target: a ring in observation order.

use std::collections::VecDeque;

use crate::model::TrainingRow;

/// Ring of the latest rows. `accepted = len + evicted` (I4).
#[derive(Clone, Debug)]
pub struct Store {
    rows: VecDeque<TrainingRow>,
    capacity: usize,
    evicted: u64,
}

impl Store {
    /// An empty store for `capacity` >= 1 rows.
    pub fn new(capacity: usize) -> Self {
        Store { rows: VecDeque::new(), capacity: capacity.max(1), evicted: 0 }
    }

    /// Adds the newest row; the oldest makes room.
    pub fn push(&mut self, row: TrainingRow) {
        if self.rows.len() == self.capacity {
            self.rows.pop_front();
            self.evicted += 1;
        }
        self.rows.push_back(row);
    }

    /// Rows now.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Rows that left to make room.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Rows, oldest first.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &TrainingRow> + ExactSizeIterator {
        self.rows.iter()
    }

    /// Drops all rows; returns how many.
    pub fn clear(&mut self) -> usize {
        let dropped = self.rows.len();
        self.evicted += dropped as u64;
        self.rows.clear();
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Features, Role};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn i4_the_store_keeps_its_bound_and_its_books(capacity in 1..20usize, pushes in 0..60usize, clear_at in 0..60usize) {
            let mut store = Store::new(capacity);
            for i in 0..pushes {
                if i == clear_at {
                    store.clear();
                }
                let features = Features {
                    kv_cache_usage: 0.0, input_tokens: i as u32, requests_waiting: 0, requests_running: 0,
                    prefix_cache_score: 0.0, prefill_tokens_in_flight: 0, decode_tokens_in_flight: 0,
                    encoder_matched_size: 0, encoder_input_size: 0, role: Role::Both,
                };
                store.push(TrainingRow { features, actual_ms: 1.0 });
                prop_assert!(store.len() <= capacity);
                prop_assert_eq!(store.len() as u64 + store.evicted(), i as u64 + 1);
                prop_assert_eq!(store.rows().last().unwrap().features.input_tokens, i as u32);
            }
        }
    }
}
