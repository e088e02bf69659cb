//! What the store holds, in the wire's buckets.

use std::collections::BTreeMap;

use super::report::load_band;
use crate::model::TrainingRow;
use crate::types::Features;

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

impl Bucket {
    /// The bucket of one request.
    pub fn of(features: &Features) -> Self {
        Bucket {
            queue: load_band(features.requests_waiting) as u8,
            cache: (20.0 * features.kv_cache_usage).floor().clamp(0.0, 19.0) as u8,
            prefix: (4.0 * features.prefix_cache_score).floor().clamp(0.0, 3.0) as u8,
        }
    }
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

pub(super) fn survey_target<'a>(rows: impl Iterator<Item = &'a TrainingRow>) -> SurveyTarget {
    let mut survey = SurveyTarget::default();
    for row in rows {
        survey.stored += 1;
        if row.features.requests_waiting == 0 {
            survey.no_queue += 1;
        } else {
            survey.queued += 1;
        }
        *survey.buckets.entry(Bucket::of(&row.features)).or_default() += 1;
    }
    survey
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Role;

    #[test]
    fn bucket_edges_in_double_arithmetic() {
        let at = |waiting, kv, prefix| {
            let bucket = Bucket::of(&Features {
                kv_cache_usage: kv,
                input_tokens: 0,
                requests_waiting: waiting,
                requests_running: 0,
                prefix_cache_score: prefix,
                prefill_tokens_in_flight: 0,
                decode_tokens_in_flight: 0,
                encoder_matched_size: 0,
                encoder_input_size: 0,
                role: Role::Both,
            });
            (bucket.queue, bucket.cache, bucket.prefix)
        };
        assert_eq!(at(3, 0.42, 0.6), (2, 8, 2));
        for (kv, cache) in [(0.05, 1), (0.15, 3), (0.29, 5), (0.35, 7), (0.55, 11), (0.58, 11), (0.7, 14), (1.0, 19)] {
            assert_eq!(at(0, kv, 0.0).1, cache, "{kv}");
        }
        for (prefix, quarter) in [(0.2499999, 0), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 3)] {
            assert_eq!(at(0, 0.0, prefix).2, quarter, "{prefix}");
        }
        for (waiting, queue) in [(0, 0), (1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (10, 3), (11, 4), (500, 4)] {
            assert_eq!(at(waiting, 0.0, 0.0).0, queue, "{waiting}");
        }
    }
}
