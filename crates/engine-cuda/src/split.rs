//! Which share gets how many multiprocessors: pure arithmetic.

/// How many of a device's parts (16 of 8 multiprocessors on an H200) each share gets. Every share gets at least one;
/// what rounding leaves over goes to those who lost most by it, so that shares that add up to 1 take all parts.
pub fn split(parts: u32, shares: &[f64]) -> Result<Vec<u32>, String> {
    let sum: f64 = shares.iter().sum();
    if shares.is_empty() || shares.iter().any(|share| !(*share > 0.0 && *share <= 1.0)) {
        return Err(format!("shares are numbers above 0 and at most 1, not {shares:?}"));
    }
    if sum > 1.0 + 1e-9 {
        return Err(format!("the shares {shares:?} add up to {sum}, which is more than the device"));
    }
    if shares.len() > parts as usize {
        return Err(format!("{} shares were asked for, but the device has {parts} parts", shares.len()));
    }
    let wanted: Vec<f64> = shares.iter().map(|share| share * f64::from(parts)).collect();
    let mut each: Vec<u32> = wanted.iter().map(|wanted| (wanted.floor() as u32).max(1)).collect();
    let allowed = ((sum * f64::from(parts)).round() as u32).clamp(shares.len() as u32, parts);
    let mut by_loss: Vec<usize> = (0..shares.len()).collect();
    let loss = |index: &usize| wanted[*index] - wanted[*index].floor();
    by_loss.sort_by(|a, b| loss(b).total_cmp(&loss(a)).then(a.cmp(b)));
    let given = |each: &[u32]| each.iter().sum::<u32>();
    for &index in by_loss.iter().cycle().take(parts as usize * shares.len()) {
        if given(&each) >= allowed {
            break;
        }
        if f64::from(each[index]) < wanted[index] {
            each[index] += 1;
        }
    }
    // Small shares that were raised to one part are paid for by the largest.
    while given(&each) > allowed {
        let largest = (0..each.len()).max_by_key(|index| each[*index]).expect("there is a share");
        each[largest] -= 1;
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn each(shares: &[f64]) -> Vec<u32> {
        split(16, shares).unwrap()
    }

    #[test]
    fn an_h200_has_16_parts() {
        assert_eq!(each(&[0.5, 0.5]), [8, 8]);
        assert_eq!(each(&[0.25, 0.75]), [4, 12]);
        assert_eq!(each(&[0.3, 0.3, 0.4]), [5, 5, 6]);
        assert_eq!(each(&[0.2]), [3]);
        assert_eq!(each(&[0.01, 0.99]), [1, 15]);
    }

    #[test]
    fn what_cannot_be_is_a_sentence() {
        assert!(split(16, &[0.6, 0.6]).unwrap_err().contains("add up to 1.2"));
        assert!(split(16, &[0.0]).unwrap_err().contains("above 0"));
        assert!(split(16, &[f64::NAN]).is_err());
        assert!(split(16, &[]).is_err());
        assert!(split(2, &[0.3, 0.3, 0.3]).unwrap_err().contains("2 parts"));
    }

    proptest! {
        /// Nobody gets nothing, nothing is given twice, and nobody is off by more than one part unless small ones had
        /// to be raised.
        #[test]
        fn shares_are_kept(weights in proptest::collection::vec(1u32..100, 1..8), used in 1u32..=100) {
            let sum: u32 = weights.iter().sum();
            let shares: Vec<f64> =
                weights.iter().map(|w| f64::from(*w) / f64::from(sum) * f64::from(used) / 100.0).collect();
            let each = split(16, &shares).unwrap();
            prop_assert!(each.iter().all(|count| *count >= 1));
            prop_assert!(each.iter().sum::<u32>() <= 16);
            let raised = shares.iter().filter(|share| **share * 16.0 < 1.0).count() as f64;
            for (share, count) in shares.iter().zip(&each) {
                prop_assert!((share * 16.0 - f64::from(*count)).abs() <= 1.0 + raised, "{shares:?} {each:?}");
            }
        }
    }
}
