//! Reads dates and timestamps in the form that most writers use: `2024-01-02`, and `2024-01-02T03:04:05` with
//! or without a fraction and a zone. Spark reads many other forms, which are unusual here.

use crate::record::{digit, Record};

const DAY_S: i64 = 86_400;
const MICROS_PER_S: i64 = 1_000_000;

/// Spark's zones are up to 18 hours from UTC; those of 18 hours and more are left to the caller.
const MAX_ZONE_HOURS: i64 = 17;

/// Reads a date between quotes, as days since 1970-01-01.
#[inline(always)]
pub fn date(record: Record, at: usize) -> Option<(i32, usize)> {
    let text = record.array::<12>(at)?;
    if text[0] != b'"' || text[11] != b'"' {
        return None;
    }
    let days = days(text[1..11].try_into().ok()?)?;
    Some((i32::try_from(days).ok()?, at + 12))
}

/// Reads a timestamp between quotes, as microseconds since 1970-01-01.
///
/// `zoned` says whether the type has a zone. If so, a text without one is in UTC if `local_is_utc`, and
/// otherwise unusual. If not, a text with a zone is unusual.
#[inline(always)]
pub fn timestamp(record: Record, at: usize, zoned: bool, local_is_utc: bool) -> Option<(i64, usize)> {
    let text = record.array::<20>(at)?;
    let days = days(text[1..11].try_into().ok()?)?;
    if text[0] != b'"' || !matches!(text[11], b'T' | b' ') || text[14] != b':' || text[17] != b':' {
        return None;
    }
    let (hour, minute) = (two_digits(text[12], text[13])?, two_digits(text[15], text[16])?);
    let second = two_digits(text[18], text[19])?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut seconds = days * DAY_S + (hour * 60 + minute) * 60 + second;
    let mut end = at + 20;

    let mut micros = 0;
    if record.byte(end) == b'.' {
        let begin = end + 1;
        end = begin;
        // Digits past the sixth are dropped, as in Spark.
        let mut unit = MICROS_PER_S / 10;
        while digit(record.byte(end)) <= 9 {
            micros += unit * i64::from(digit(record.byte(end)));
            unit /= 10;
            end += 1;
        }
        if end == begin {
            return None;
        }
    }
    match record.byte(end) {
        b'Z' if zoned => end += 1,
        sign @ (b'+' | b'-') if zoned => {
            let zone = record.array::<5>(end + 1)?;
            let (hours, minutes) = (two_digits(zone[0], zone[1])?, two_digits(zone[3], zone[4])?);
            if zone[2] != b':' || hours > MAX_ZONE_HOURS || minutes > 59 {
                return None;
            }
            let ahead = (hours * 60 + minutes) * 60;
            seconds -= if sign == b'-' { -ahead } else { ahead };
            end += 6;
        }
        _ if zoned && !local_is_utc => return None,
        _ => {}
    }
    (record.byte(end) == b'"').then_some((seconds * MICROS_PER_S + micros, end + 1))
}

/// Returns the days since 1970-01-01 of a date in the proleptic Gregorian calendar, from the year 1 on.
#[inline(always)]
fn days(text: &[u8; 10]) -> Option<i64> {
    if text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let year = two_digits(text[0], text[1])? * 100 + two_digits(text[2], text[3])?;
    let (month, day) = (two_digits(text[5], text[6])?, two_digits(text[8], text[9])?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap),
        _ => return None,
    };
    if year < 1 || day < 1 || day > last {
        return None;
    }
    // Years begin in March here, so that a leap day is the last day of its year.
    let march_year = if month <= 2 { year - 1 } else { year };
    let months = if month <= 2 { month + 9 } else { month - 3 };
    let leap_days = march_year / 4 - march_year / 100 + march_year / 400;
    let days_of_months = (153 * months + 2) / 5;
    Some(march_year * 365 + leap_days + days_of_months + day - 1 - 719_468)
}

#[inline(always)]
fn two_digits(tens: u8, ones: u8) -> Option<i64> {
    let (tens, ones) = (digit(tens), digit(ones));
    (tens <= 9 && ones <= 9).then(|| i64::from(tens) * 10 + i64::from(ones))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str, zoned: bool, local_is_utc: bool) -> Option<i64> {
        let quoted = format!("\"{text}\"");
        let (value, end) = timestamp(Record::new(quoted.as_bytes()), 0, zoned, local_is_utc)?;
        (end == quoted.len()).then_some(value)
    }

    #[test]
    fn days_follow_each_other() {
        let mut expected = -719_162;
        for year in 1..=9999 {
            for month in 1..=12 {
                for day in 1..=31 {
                    if let Some(days) =
                        days(format!("{year:04}-{month:02}-{day:02}").as_bytes().try_into().unwrap())
                    {
                        assert_eq!(days, expected, "{year}-{month}-{day}");
                        expected += 1;
                    }
                }
            }
        }
        assert_eq!(expected, 2_932_897, "9999-12-31 is the last of 3,652,059 days");
    }

    #[test]
    fn common_forms_are_read() {
        assert_eq!(micros("1970-01-01T00:00:00Z", true, false), Some(0));
        assert_eq!(micros("1970-01-01 00:00:01.5Z", true, false), Some(1_500_000));
        assert_eq!(micros("1970-01-01T00:00:00.1234567Z", true, false), Some(123_456));
        assert_eq!(micros("1970-01-01T01:00:00+01:00", true, false), Some(0));
        assert_eq!(micros("1969-12-31T06:01:00-17:59", true, false), Some(0));
        assert_eq!(micros("1970-01-01T00:00:01", true, true), Some(1_000_000));
        assert_eq!(micros("1970-01-01T00:00:01", false, false), Some(1_000_000));
    }

    #[test]
    fn others_are_unusual() {
        for text in [
            "",
            "1970-01-01",
            "1970-1-01T00:00:00Z",
            "1970-01-01t00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:60:00Z",
            "1970-01-01T00:00:60Z",
            "1970-01-01T00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00z",
            "1970-01-01T00:00:00 Z",
            "1970-01-01T00:00:00+18:00",
            "0000-01-01T00:00:00Z",
            "1970-01-01T00:00:00+0100",
            "1970-01-01T00:00:00+01",
            "1970-02-29T00:00:00Z",
            "1970-00-01T00:00:00Z",
            "1970-01-01T00:00:00ZZ",
            "1970-01-01T00:00:00+01:60",
        ] {
            assert_eq!(micros(text, true, true), None, "{text}");
        }
        assert_eq!(micros("1970-01-01T00:00:00", true, false), None);
        assert_eq!(micros("1970-01-01T00:00:00Z", false, true), None);
        for text in ["", "\"", "\"1970-01-01", "\"1970-01-01 ", "'1970-01-01'", "\"1970-02-30\""] {
            assert_eq!(date(Record::new(text.as_bytes()), 0), None, "{text}");
        }
        assert_eq!(date(Record::new(b"\"1970-01-02\""), 0), Some((1, 12)));
    }
}
