//! The latest samples of one target: a ring in observation order, which a change of regime corrects.

use std::collections::{BTreeMap, VecDeque};

use crate::model::TrainingRow;
use crate::types::{EndpointName, LATENCY_MS_MAX, LATENCY_MS_MIN};

/// Rows from before a change that stay beside those since: their shape stays useful once their scale is right.
const OLDER_ROWS_MAX: u64 = 1000;

/// Endpoint names that are remembered; beyond it a sample counts as unnamed.
const NAMES_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct StoredRow {
    row: TrainingRow,
    /// Number of the observation in its endpoint's stream.
    observation: u64,
}

/// Ring of the latest rows. `accepted = len + evicted` (I4).
#[derive(Clone, Debug)]
pub struct Store {
    rows: VecDeque<StoredRow>,
    capacity: usize,
    evicted: u64,
    /// Endpoints by number, from 1; `None` where it runs something else now.
    names: Vec<Option<EndpointName>>,
    numbers: BTreeMap<EndpointName, u32>,
}

impl Store {
    /// An empty store for `capacity` >= 1 rows.
    pub fn new(capacity: usize) -> Self {
        Store {
            rows: VecDeque::new(),
            capacity: capacity.max(1),
            evicted: 0,
            names: Vec::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// Adds the newest row; the oldest makes room. `observation` is its number in its endpoint's stream.
    pub fn push(&mut self, mut row: TrainingRow, endpoint: Option<&EndpointName>, observation: u64) {
        row.endpoint = self.number(endpoint);
        if self.rows.len() == self.capacity {
            self.rows.pop_front();
            self.evicted += 1;
        }
        self.rows.push_back(StoredRow { row, observation });
    }

    /// Corrects an endpoint's rows up to `changed_after` by a factor of `exp(log_shift)`, and keeps the latest thousand
    /// of them at most, fewer where there are newer ones.
    pub fn shift(&mut self, endpoint: Option<&EndpointName>, changed_after: u64, newer: u64, log_shift: f64) {
        let number = self.number(endpoint);
        for stored in &mut self.rows {
            if stored.row.endpoint == number && stored.observation <= changed_after {
                let shifted = stored.row.actual_ms * log_shift.exp();
                stored.row.actual_ms = shifted.clamp(LATENCY_MS_MIN, LATENCY_MS_MAX);
            }
        }
        self.thin(number, changed_after, OLDER_ROWS_MAX.saturating_sub(newer));
    }

    /// Puts an endpoint's rows so far apart from those to come: they are another machine's, of unknown relation.
    pub fn retire(&mut self, endpoint: Option<&EndpointName>) {
        let number = self.number(endpoint);
        self.thin(number, u64::MAX, OLDER_ROWS_MAX);
        if number == 0 {
            self.names.push(None);
            let retired = self.names.len() as u32;
            self.rows
                .iter_mut()
                .filter(|stored| stored.row.endpoint == 0)
                .for_each(|stored| stored.row.endpoint = retired);
        } else if let Some(name) = self.names.get_mut(number as usize - 1).and_then(Option::take) {
            self.numbers.remove(&name);
        }
    }

    /// Rows now.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Rows that left to make room, or because what they showed is no longer true.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Rows, oldest first.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &TrainingRow> + ExactSizeIterator {
        self.rows.iter().map(|stored| &stored.row)
    }

    /// Endpoints that rows refer to by number, the first being number 1; `None` for those that run something else now.
    pub fn names(&self) -> &[Option<EndpointName>] {
        &self.names
    }

    /// Drops all rows; returns how many.
    pub fn clear(&mut self) -> usize {
        let dropped = self.rows.len();
        self.evicted += dropped as u64;
        self.rows.clear();
        self.names.clear();
        self.numbers.clear();
        dropped
    }

    fn number(&mut self, endpoint: Option<&EndpointName>) -> u32 {
        let Some(name) = endpoint else { return 0 };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.names.len() >= NAMES_MAX {
            self.forget_unused_names();
        }
        if self.names.len() >= NAMES_MAX {
            return 0;
        }
        self.names.push(Some(name.clone()));
        let number = self.names.len() as u32;
        self.numbers.insert(name.clone(), number);
        number
    }

    /// Renumbers so that only endpoints with rows have a number.
    fn forget_unused_names(&mut self) {
        let mut renumbered = vec![0u32; self.names.len() + 1];
        let mut names = Vec::new();
        for stored in &mut self.rows {
            let old = stored.row.endpoint as usize;
            if old > 0 && renumbered[old] == 0 {
                names.push(self.names[old - 1].clone());
                renumbered[old] = names.len() as u32;
            }
            stored.row.endpoint = renumbered[old];
        }
        self.numbers = (1..).zip(&names).filter_map(|(number, name)| Some((name.clone()?, number))).collect();
        self.names = names;
    }

    /// Keeps the latest `kept` rows among an endpoint's rows up to `changed_after`.
    fn thin(&mut self, number: u32, changed_after: u64, kept: u64) {
        let old = |stored: &StoredRow| stored.row.endpoint == number && stored.observation <= changed_after;
        let mut surplus = (self.rows.iter().filter(|stored| old(stored)).count() as u64).saturating_sub(kept);
        self.evicted += surplus;
        self.rows.retain(|stored| {
            let drop = surplus > 0 && old(stored);
            surplus -= u64::from(drop);
            !drop
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Features, Role};
    use proptest::prelude::*;

    fn row(i: usize) -> TrainingRow {
        let features = Features {
            kv_cache_usage: 0.0,
            input_tokens: i as u32,
            requests_waiting: 0,
            requests_running: 0,
            prefix_cache_score: 0.0,
            prefill_tokens_in_flight: 0,
            decode_tokens_in_flight: 0,
            encoder_matched_size: 0,
            encoder_input_size: 0,
            role: Role::Both,
        };
        TrainingRow { features, actual_ms: 1.0, endpoint: 0 }
    }

    proptest! {
        #[test]
        fn i4_the_store_keeps_its_bound_and_its_books(
            capacity in 1..20usize,
            steps in prop::collection::vec((0..12u8, 0..3u8), 0..80),
        ) {
            let mut store = Store::new(capacity);
            let mut pushed = 0u64;
            for (step, endpoint) in steps {
                let name = EndpointName::try_new(&format!("e{endpoint}")).filter(|_| endpoint > 0);
                match step {
                    0 => { store.clear(); }
                    1 => store.retire(name.as_ref()),
                    2 => store.shift(name.as_ref(), pushed / 2, 995, 1.0),
                    _ => {
                        pushed += 1;
                        store.push(row(pushed as usize), name.as_ref(), pushed);
                        prop_assert_eq!(u64::from(store.rows().last().unwrap().features.input_tokens), pushed);
                    }
                }
                prop_assert!(store.len() <= capacity);
                prop_assert_eq!(store.len() as u64 + store.evicted(), pushed);
                prop_assert!(store.rows().all(|row| row.endpoint as usize <= store.names().len()));
            }
        }
    }

    #[test]
    fn a_shift_corrects_what_is_older_at_that_endpoint_and_nothing_else() {
        let mut store = Store::new(100);
        let [a, b] = ["a", "b"].map(|name| EndpointName::try_new(name).unwrap());
        for i in 1..=10 {
            store.push(row(i), Some(&a), i as u64);
            store.push(row(i), Some(&b), i as u64);
        }
        store.shift(Some(&a), 4, 6, 2f64.ln());
        let of = |number: u32| {
            store.rows().filter(move |row| row.endpoint == number).map(|row| row.actual_ms).collect::<Vec<_>>()
        };
        assert_eq!(of(2), [1.0; 10]);
        assert!(of(1)[..4].iter().all(|ms| (ms - 2.0).abs() < 1e-12) && of(1)[4..] == [1.0; 6]);
        store.shift(Some(&a), 4, 999, 0.0);
        assert_eq!(store.rows().filter(|row| row.endpoint == 1).count(), 7);
    }

    #[test]
    fn names_never_run_out() {
        let mut store = Store::new(10);
        for i in 0..3 * NAMES_MAX {
            store.push(row(i), EndpointName::try_new(&format!("endpoint-{i}")).as_ref(), 1);
        }
        assert!(store.names().len() <= NAMES_MAX);
        assert!(store.rows().all(|row| row.endpoint > 0));
    }

    #[test]
    fn a_retired_endpoint_is_another_one_from_then_on() {
        let mut store = Store::new(100);
        store.push(row(1), None, 1);
        store.retire(None);
        store.push(row(2), None, 2);
        let numbers: Vec<u32> = store.rows().map(|row| row.endpoint).collect();
        assert_eq!((numbers, store.names()), (vec![1, 0], &[None][..]));
    }
}
