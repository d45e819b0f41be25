//! JSON numbers as values: `42`, `42.0` and `4.2e1` are one number.

/// A decimal number of any size, in its one normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecimalNumber {
    negative: bool,
    /// Without zeros at either end; empty for zero.
    digits: String,
    /// Power of ten of the last digit.
    exponent: i64,
}

/// Zeros that a plain spelling may add.
const MAX_ZEROS: i64 = 64;

impl DecimalNumber {
    /// Reads a text of JSON's number grammar; `None` for anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let leads_well = whole == "0" || !whole.starts_with('0');
        if !leads_well || !is_digits(whole) || !fraction.is_none_or(is_digits) {
            return None;
        }
        let fraction = fraction.unwrap_or_default();
        let exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
        let all = [whole, fraction].concat();
        let kept = all.trim_end_matches('0');
        let dropped = i64::try_from(all.len() - kept.len()).ok()?;
        let digits = kept.trim_start_matches('0').to_owned();
        Some(if digits.is_empty() {
            Self {
                negative: false,
                digits,
                exponent: 0,
            }
        } else {
            Self {
                negative,
                digits,
                exponent: exponent.checked_add(dropped)?,
            }
        })
    }

    /// The number as plain digits, when it is an integer that is not absurdly long.
    pub(super) fn integer(&self) -> Option<String> {
        if self.digits.is_empty() {
            return Some("0".to_owned());
        }
        let zeros = usize::try_from(self.exponent)
            .ok()
            .filter(|_| self.exponent <= MAX_ZEROS)?;
        let sign = if self.negative { "-" } else { "" };
        Some([sign, &self.digits, &"0".repeat(zeros)].concat())
    }
}

fn read_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let value: i64 = digits.parse().ok().filter(|_| is_digits(digits))?;
    Some(if text.starts_with('-') { -value } else { value })
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("42", "42.0", true)]
    #[case("42", "4.2e1", true)]
    #[case("-0", "0", true)]
    #[case("1e400", "10e399", true)]
    #[case("9007199254740993", "9007199254740992", false)]
    #[case("42", "-42", false)]
    fn numbers_are_compared_by_value(#[case] a: &str, #[case] b: &str, #[case] same: bool) {
        assert_eq!(
            DecimalNumber::parse(a).unwrap() == DecimalNumber::parse(b).unwrap(),
            same
        );
    }

    #[rstest]
    fn what_json_does_not_call_a_number_is_none(
        #[values(
            "", "-", "+1", "01", "1.", ".5", "1e", "0x1", "1_0", " 1", "NaN", "1e+", "1e--1"
        )]
        text: &str,
    ) {
        assert_eq!(DecimalNumber::parse(text), None);
    }

    #[rstest]
    #[case("-7.0", Some("-7"))]
    #[case("1e3", Some("1000"))]
    #[case("0.5", None)]
    #[case("1e99", None)]
    #[case("0e5", Some("0"))]
    fn integers_are_spelled_plainly(#[case] text: &str, #[case] plain: Option<&str>) {
        assert_eq!(
            DecimalNumber::parse(text).unwrap().integer().as_deref(),
            plain
        );
    }
}
