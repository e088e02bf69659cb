//! Empirical quantiles with linear interpolation between order statistics.

/// `q`-quantile of finite values, reordering them. 0 for an empty slice is never meant: the answer is `None`.
pub fn quantile_of(values: &mut [f64], q: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = (position.floor() as usize).min(last);
    let (_, &mut low, rest) = values.select_nth_unstable_by(below, f64::total_cmp);
    let fraction = position - below as f64;
    let high = if fraction > 0.0 { rest.iter().copied().min_by(f64::total_cmp).unwrap_or(low) } else { low };
    Some(low + (high - low) * fraction)
}

/// The same for values already in ascending order.
pub fn quantile_of_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = (position.floor() as usize).min(last);
    let low = *sorted.get(below)?;
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    Some(low + (high - low) * (position - below as f64))
}

#[cfg(test)]
mod tests {
    use super::{quantile_of, quantile_of_sorted};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways_agree_and_stay_within_the_values(mut values in prop::collection::vec(-1e6..1e6f64, 1..60), q in 0.0..=1.0f64) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let direct = quantile_of(&mut values, q).unwrap();
            prop_assert_eq!(direct, quantile_of_sorted(&sorted, q).unwrap());
            prop_assert!(sorted[0] <= direct && direct <= sorted[sorted.len() - 1]);
        }
    }

    #[test]
    fn interpolates_and_has_nothing_to_say_about_nothing() {
        assert_eq!(quantile_of(&mut [4.0, 1.0, 3.0, 2.0], 0.5), Some(2.5));
        assert_eq!(quantile_of(&mut [], 0.5), None);
        assert_eq!(quantile_of_sorted(&[], 0.5), None);
    }
}
