//! When, as text; and how long to wait.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A time as RFC 3339 writes it, in UTC and to the millisecond.
pub(crate) fn text(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let (seconds, millis) = (seconds % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

/// The day that comes so many days after 1970-01-01. Years are counted from March, so that leap days end them.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// How long to wait after so many failures in a row: twice as long each time, up to half a minute, and not all at once.
pub(crate) fn back_off(failures: u32) -> Duration {
    let seconds = (0.1 * 2_f64.powi(failures.min(20) as i32)).min(30.0);
    let chance = RandomState::new().hash_one(failures) as f64 / u64::MAX as f64;
    Duration::from_secs_f64(seconds * (0.75 + chance / 4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_everyone_writes_them() {
        let check = |seconds, expected| {
            assert_eq!(text(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        };
        check(0, "1970-01-01T00:00:00.000Z");
        check(951_782_400, "2000-02-29T00:00:00.000Z");
        check(1_735_689_599, "2024-12-31T23:59:59.000Z");
        check(4_107_542_400, "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn waiting_grows_and_has_an_end() {
        assert!(back_off(1) <= Duration::from_millis(200));
        assert!(back_off(5) >= Duration::from_secs(2));
        assert!(back_off(u32::MAX) <= Duration::from_secs(30));
    }
}
