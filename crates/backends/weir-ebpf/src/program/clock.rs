// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//! The clock of the programs: the ticks of the kernel, which cost one load.

use std::time::Duration;

/// How many ticks a kernel counts in a second. The programs count time in units of a power of two of
/// ticks, about a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickClock {
    per_second: u32,
}

impl TickClock {
    /// The clock of a kernel with this many ticks in a second, at least 1.
    pub const fn with_rate(per_second: u32) -> Self {
        TickClock { per_second: if per_second == 0 { 1 } else { per_second } }
    }

    /// The bits by which the programs shift the number of ticks: the unit is 0.7 to 1.4 seconds.
    pub(crate) fn shift(self) -> i32 {
        let lower = self.per_second.ilog2();
        // The square of the middle between two powers, whose logarithms differ by one.
        let is_above = u64::from(self.per_second).pow(2) > 1 << (2 * lower + 1);
        (lower + u32::from(is_above)) as i32
    }

    /// How long before `now`, which is the time since the machine started, it was `time` in the unit of
    /// the programs.
    pub(crate) fn age(self, now: Duration, time: u64) -> Duration {
        let ticks = time << self.shift();
        let since_start = ticks.saturating_sub(self.first_tick());
        let seconds = since_start as f64 / f64::from(self.per_second);
        now.saturating_sub(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// The kernel's counter has 32 bits on some machines, and starts 5 minutes before it overflows there.
    fn first_tick(self) -> u64 {
        (1 << 32) - 300 * u64::from(self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_about_a_second() {
        for (rate, seconds) in
            [(24, 32. / 24.), (100, 1.28), (250, 1.024), (300, 256. / 300.), (1000, 1.024)]
        {
            let clock = TickClock::with_rate(rate);
            let unit = f64::from(1 << clock.shift()) / f64::from(rate);
            assert!((unit - seconds).abs() < 1e-9, "{rate}: {unit}");
        }
        assert_eq!(TickClock::with_rate(1).shift(), 0);
        assert_eq!(TickClock::with_rate(0).shift(), 0);
    }

    #[test]
    fn the_age_of_a_packet_is_found() {
        let clock = TickClock::with_rate(250);
        let now = Duration::from_secs(1000);
        let sent = (clock.first_tick() + 990 * 250) >> clock.shift();
        let age = clock.age(now, sent).as_secs_f64();
        assert!((10.0..11.1).contains(&age), "{age}");
        assert_eq!(clock.age(now, u64::MAX >> 1), Duration::ZERO);
        assert_eq!(clock.age(now, 0), now);
    }
}
