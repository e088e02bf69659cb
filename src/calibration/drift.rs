//! Change of regime: two-sided cumulative sums (E. S. Page, "Continuous inspection schemes", 1954) of the standardised
//! residual of requests that met no queue. One burst shows in hundreds of queued residuals, so those are left out.

use std::collections::VecDeque;

use super::tracker::Judged;
use crate::stats::quantile_of;
use crate::types::{Features, Target, UnixMs};

/// Largest standardised residual that enters the sums.
const Z_MAX: f64 = 4.0;

/// What every observation takes off the sums: a drift smaller than this many standard deviations never adds up.
const ALLOWANCE_TTFT: f64 = 1.0;
const ALLOWANCE_TPOT: f64 = 1.5;

/// Sum at which there is an alarm.
const THRESHOLD: f64 = 30.0;

/// Observations before the first alarm, and between two of them.
const OBSERVATIONS_MIN: u64 = 20;
const OBSERVATIONS_BETWEEN: u64 = 60;

/// Prefill tokens in flight from which a request is taken as queued although none waits.
const IN_FLIGHT_MAX: u32 = 3000;

/// Residuals since the sum was last 0 that are kept.
const KEPT_MAX: usize = 1024;

/// Observations dispatched after the change that an alarm needs. Requests in flight together share the same steps, so a
/// burst of their outcomes is one event; those sent off afterwards are another.
const DISPATCHED_SINCE_MIN: usize = 10;

/// Shift below which the online offset carries it alone.
const SHIFT_MIN: f64 = 0.4;

/// A change that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Observation after which things were different, counted over all observations given to [`Drift::observe`].
    pub changed_after: u64,
    /// When that one was seen.
    pub changed_at: UnixMs,
    /// Observations since.
    pub observations: u64,
    /// `ln` of the factor by which latencies changed.
    pub log_shift: f64,
}

/// One direction's sum.
#[derive(Clone, Debug)]
struct Sum {
    direction: f64,
    value: f64,
    /// The observation at which it was last 0.
    zero_after: u64,
    zero_at: UnixMs,
}

impl Sum {
    fn new(direction: f64) -> Self {
        Sum { direction, value: 0.0, zero_after: 0, zero_at: UnixMs(0) }
    }

    fn reset(&mut self, observation: u64, at: UnixMs) {
        (self.value, self.zero_after, self.zero_at) = (0.0, observation, at);
    }
}

/// The detector of one stream of outcomes.
#[derive(Clone, Debug)]
pub struct Drift {
    sums: [Sum; 2],
    /// All observations, those left out included.
    observations: u64,
    watched: u64,
    latest_alarm: Option<u64>,
    /// Unqueued residuals by observation number with the moment of dispatch, latest last.
    residuals: VecDeque<(u64, UnixMs, f64)>,
}

impl Default for Drift {
    fn default() -> Self {
        Drift {
            sums: [Sum::new(1.0), Sum::new(-1.0)],
            observations: 0,
            watched: 0,
            latest_alarm: None,
            residuals: VecDeque::new(),
        }
    }
}

impl Drift {
    /// Takes one outcome. `offset_leads`: whether an online offset has earned its use, which must agree before there is
    /// an alarm. A change that is found resets the detector.
    pub fn observe(
        &mut self,
        target: Target,
        features: &Features,
        judged: &Judged,
        offset_leads: bool,
    ) -> Option<Shift> {
        self.observations += 1;
        if features.requests_waiting > 0 || features.prefill_tokens_in_flight >= IN_FLIGHT_MAX {
            return None;
        }
        self.watched += 1;
        let at = judged.observed_at;
        if self.residuals.len() == KEPT_MAX {
            self.residuals.pop_front();
        }
        self.residuals.push_back((self.observations, judged.dispatched_at, judged.residual()));
        if self.watched <= OBSERVATIONS_MIN {
            self.reset(at);
            return None;
        }
        let allowance = match target {
            Target::Ttft => ALLOWANCE_TTFT,
            Target::Tpot => ALLOWANCE_TPOT,
        };
        let z = (judged.residual() / judged.sigma()).clamp(-Z_MAX, Z_MAX);
        for sum in &mut self.sums {
            sum.value += sum.direction * z - allowance;
            if sum.value <= 0.0 {
                sum.reset(self.observations, at);
            }
        }
        let over = self.sums.iter().position(|sum| sum.value >= THRESHOLD)?;
        if self.latest_alarm.is_some_and(|latest| self.observations - latest < OBSERVATIONS_BETWEEN) {
            return None;
        }
        let (after, changed_at) = (self.sums[over].zero_after, self.sums[over].zero_at);
        let mut since: Vec<f64> = self
            .residuals
            .iter()
            .filter(|(number, dispatched_at, _)| *number > after && *dispatched_at >= changed_at)
            .map(|(_, _, residual)| *residual)
            .collect();
        if since.len() < DISPATCHED_SINCE_MIN {
            return None;
        }
        let log_shift = quantile_of(&mut since, 0.5).unwrap_or(0.0);
        self.reset(at);
        if !offset_leads || log_shift.abs() < SHIFT_MIN {
            return None;
        }
        self.latest_alarm = Some(self.observations);
        self.residuals.clear();
        Some(Shift { changed_after: after, changed_at, observations: self.observations - after, log_shift })
    }

    /// Observations so far, those left out of the sums included.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// Begins anew but for the count of observations.
    pub fn restart(&mut self) {
        *self = Drift { observations: self.observations, latest_alarm: self.latest_alarm, ..Drift::default() };
    }

    fn reset(&mut self, at: UnixMs) {
        let now = self.observations;
        self.sums.iter_mut().for_each(|sum| sum.reset(now, at));
    }
}
