//! What the store holds, in the wire's buckets.

use std::collections::BTreeMap;

/// The wire's bucket of a row: queue 0..=4, cache 0..=19, prefix 0..=3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket {
    /// Waiting requests: 0, 1-2, 3-5, 6-10, 11 and more.
    pub queue: u8,
    /// Twentieths of KV use.
    pub cache: u8,
    /// Quarters of the prefix score.
    pub prefix: u8,
}

/// One target's rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SurveyTarget {
    /// Rows stored.
    pub stored: usize,
    /// Rows with an empty queue.
    pub no_queue: usize,
    /// Rows with requests waiting.
    pub queued: usize,
    /// Non-empty buckets.
    pub buckets: BTreeMap<Bucket, usize>,
}

/// Both targets, and the pairs behind the prefix statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// In the order of `Target::ALL`.
    pub targets: [SurveyTarget; 2],
    /// (prefix score, TTFT in ms) of every stored TTFT row.
    pub prefix_ttft: Vec<(f64, f64)>,
}
