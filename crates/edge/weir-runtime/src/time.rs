//! Times as text.

use std::time::SystemTime;

use jiff::Timestamp;

/// A time in RFC 3339, in UTC, with milliseconds: `2024-12-31T23:59:59.000Z`.
///
/// A time outside the years -9999 to 9999 becomes the start of 1970.
pub fn rfc3339(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_have_milliseconds_and_are_in_utc() {
        let check = |millis, expected| {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), expected);
        };
        check(0, "1970-01-01T00:00:00.000Z");
        check(951_782_400_000, "2000-02-29T00:00:00.000Z");
        check(1_735_689_599_007, "2024-12-31T23:59:59.007Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00.000Z");
    }
}
