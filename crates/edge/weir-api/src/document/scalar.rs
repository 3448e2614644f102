use super::TreeValue;

/// The meaning of a plain scalar in YAML 1.1, which the API server uses: `yes` is a boolean, `010`
/// is eight.
pub(super) fn resolve(text: &str) -> TreeValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => TreeValue::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            TreeValue::Bool(true, text.into())
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            TreeValue::Bool(false, text.into())
        }
        ".nan" | ".NaN" | ".NAN" => TreeValue::Float(text.into()),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => number(text),
        _ => TreeValue::Str(text.into()),
    }
}

fn number(text: &str) -> TreeValue {
    if matches!(text.trim_start_matches(['+', '-']), ".inf" | ".Inf" | ".INF") {
        return TreeValue::Float(text.into());
    }
    // No 64-bit number is longer, and hostile input may contain a gigabyte of digits.
    let plain = match text.len() {
        0..=64 => text.replace('_', ""),
        _ => text.into(),
    };
    if let Some(number) = integer(&plain) {
        return TreeValue::Int(number, text.into());
    }
    if !looks_like_float(&plain) {
        return TreeValue::Str(text.into());
    }
    // The API server converts YAML to JSON, where 80.0 becomes 80.
    const EXACT: f64 = (1_u64 << 53) as f64;
    match plain.parse::<f64>() {
        Ok(float) if plain.len() <= 64 && float.fract() == 0.0 && float.abs() <= EXACT => {
            TreeValue::Int(float as i64, text.into())
        }
        _ => TreeValue::Float(text.into()),
    }
}

fn integer(plain: &str) -> Option<i64> {
    let (negative, digits) = match plain.as_bytes().first()? {
        b'-' => (true, &plain[1..]),
        b'+' => (false, &plain[1..]),
        _ => (false, plain),
    };
    let (radix, digits) = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -number } else { number }).ok()
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn looks_like_float(plain: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let unsigned = plain.strip_prefix(['+', '-']).unwrap_or(plain);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(mantissa),
    };
    mantissa_fits && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_follow_yaml_1_1() {
        let int = |n, text: &str| TreeValue::Int(n, text.into());
        for (text, value) in [
            ("", TreeValue::Null),
            ("~", TreeValue::Null),
            ("yes", TreeValue::Bool(true, "yes".into())),
            ("N", TreeValue::Bool(false, "N".into())),
            ("yEs", TreeValue::Str("yEs".into())),
            ("80", int(80, "80")),
            ("-1", int(-1, "-1")),
            ("010", int(8, "010")),
            ("08", int(8, "08")),
            ("0", int(0, "0")),
            ("0x1F", int(31, "0x1F")),
            ("1_000", int(1000, "1_000")),
            ("80.0", int(80, "80.0")),
            ("8e1", int(80, "8e1")),
            ("1.5", TreeValue::Float("1.5".into())),
            ("99999999999999999999", TreeValue::Float("99999999999999999999".into())),
            ("10.0.0.0/8", TreeValue::Str("10.0.0.0/8".into())),
            ("10.0.0.1", TreeValue::Str("10.0.0.1".into())),
            ("1:30", TreeValue::Str("1:30".into())),
            ("2020-01-01", TreeValue::Str("2020-01-01".into())),
            ("-", TreeValue::Str("-".into())),
            ("--5", TreeValue::Str("--5".into())),
            ("+-5", TreeValue::Str("+-5".into())),
            (".inf", TreeValue::Float(".inf".into())),
            ("0x", TreeValue::Str("0x".into())),
        ] {
            assert_eq!(resolve(text), value, "{text}");
        }
    }
}
