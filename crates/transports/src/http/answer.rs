//! What an answer means: the one table from status and failure to [`Outcome`].
//!
//! The same table is in `docs/webhooks.md`, for those who receive; a test compares them.

use posthouse_core::{Invalid, Outcome};
use std::time::{Duration, SystemTime};

/// The longest wish of a destination that is passed on. A relay may cut it further.
pub const LONGEST_WISH: Duration = Duration::from_secs(24 * 60 * 60);

/// Why there was no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The destination's address may not be dialled.
    Blocked,
    /// Its name could not be looked up.
    Dns,
    /// No connection: refused, unreachable, or not in time.
    Connect,
    /// No encrypted connection: a certificate that is not trusted, or no common version.
    Tls,
    /// The request was under way, and there was no answer in time.
    Timeout,
    /// The request was under way, and the connection was cut.
    Reset,
    /// What came back is not HTTP.
    Protocol,
}

impl Failure {
    /// Every one, for documentation and tests.
    pub const ALL: [Self; 7] = [
        Self::Blocked,
        Self::Dns,
        Self::Connect,
        Self::Tls,
        Self::Timeout,
        Self::Reset,
        Self::Protocol,
    ];

    /// The code that an attempt keeps.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Blocked => "blocked_address",
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
        }
    }

    /// What it makes of the message: where nothing was sent, nothing happened. A blocked address is not final, because a name
    /// server may be wrong for a moment, and a message must not die of that.
    pub const fn meaning(self) -> Meaning {
        match self {
            Self::Blocked | Self::Dns | Self::Connect | Self::Tls => Meaning::Retry,
            Self::Timeout | Self::Reset | Self::Protocol => Meaning::Unknown,
        }
    }
}

/// The kinds of [`Outcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// It was taken.
    Delivered,
    /// It was not, and may be later.
    Retry,
    /// It never will be.
    Reject,
    /// It may have been.
    Unknown,
}

/// The statuses that reject a message for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejects(Vec<u16>);

/// 400, 410 and 422. Other 4xx are often a proxy's, and pass.
impl Default for Rejects {
    fn default() -> Self {
        Self(vec![400, 410, 422])
    }
}

impl Rejects {
    /// These, in place of the usual ones.
    pub fn only(statuses: impl IntoIterator<Item = u16>) -> Result<Self, Invalid> {
        let statuses: Vec<u16> = statuses.into_iter().collect();
        match statuses.iter().find(|status| !(300..600).contains(*status)) {
            Some(status) => Err(Invalid::new(
                "rejects",
                format!("{status} cannot reject; name statuses from 300 to 599"),
            )),
            None => Ok(Self(statuses)),
        }
    }
}

/// What a status means. A 503 says "not now" when it says when; otherwise it may come from anywhere on the way back.
pub fn meaning(status: u16, wishes: bool, rejects: &Rejects) -> Meaning {
    match status {
        200..=299 => Meaning::Delivered,
        _ if rejects.0.contains(&status) => Meaning::Reject,
        300..=499 => Meaning::Retry,
        503 if wishes => Meaning::Retry,
        _ => Meaning::Unknown,
    }
}

/// The outcome of an answer: its status, what it wished by `Retry-After`, and what it said.
pub fn answered(status: u16, after: Option<Duration>, said: &str, rejects: &Rejects) -> Outcome {
    let said = said.trim();
    let error = match said {
        "" => format!("answered {status}"),
        said => format!("answered {status}: {said}"),
    };
    let code = format!("http_{status}");
    match meaning(status, after.is_some(), rejects) {
        Meaning::Delivered => Outcome::Delivered {
            receipt: (!said.is_empty()).then(|| said.to_owned()),
            answer: None,
        },
        Meaning::Retry => Outcome::Retry { after, code, error },
        Meaning::Reject => Outcome::Reject { code, error },
        Meaning::Unknown => Outcome::Unknown { code, error },
    }
}

/// The outcome of an answer to a step of a saga, or to what undoes it. A redirection may tell where to look at what was done (303 does), so nobody knows whether
/// it was; a plain message is sent again in either case.
pub fn answered_by_participant(status: u16, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Retry { code, error, .. } if (300..400).contains(&status) => Outcome::Unknown { code, error },
        outcome => outcome,
    }
}

/// The outcome when there was no answer.
pub fn failed(failure: Failure, error: String) -> Outcome {
    let code = failure.code().to_owned();
    match failure.meaning() {
        Meaning::Unknown => Outcome::Unknown { code, error },
        _ => Outcome::Retry {
            after: None,
            code,
            error,
        },
    }
}

/// What `Retry-After` asks for: seconds, or a date by the destination's own clock (its `Date`, or else ours). What is long is cut
/// to a day; what is past, negative or no such thing is no wish.
pub fn retry_after(value: &[u8], date: Option<&[u8]>, now: SystemTime) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Only too many digits do not fit.
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(LONGEST_WISH));
    }
    let until = http_date(text)?;
    let now = date
        .and_then(|date| http_date(std::str::from_utf8(date).ok()?))
        .unwrap_or(now);
    let wait = until.duration_since(now).ok()?;
    Some(wait.min(LONGEST_WISH))
}

fn http_date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn every_status_means_what_the_page_says() {
        for (row, meaning_there) in page() {
            let (statuses, wishes) = match row.strip_suffix(" with `Retry-After`") {
                Some(statuses) => (statuses, true),
                None => (row.as_str(), false),
            };
            for status in expand(statuses) {
                assert_eq!(
                    meaning(status, wishes, &Rejects::default()),
                    meaning_there,
                    "{row}: {status}"
                );
            }
        }
        let mut told: Vec<u16> = page()
            .iter()
            .filter(|(row, _)| !row.contains("with"))
            .flat_map(|(row, _)| expand(row))
            .collect();
        told.sort_unstable();
        assert_eq!(told, (100..600).collect::<Vec<_>>(), "each status is in one row");
    }

    #[test]
    fn every_failure_means_what_the_page_says() {
        let told = rows().into_iter().filter(|cells| cells[0].starts_with('*'));
        let told: Vec<_> = told.map(|cells| (cells[2].clone(), named(&cells[1]))).collect();
        let known: Vec<_> = Failure::ALL.map(|f| (format!("`{}`", f.code()), f.meaning())).into();
        assert_eq!(told, known);
    }

    /// The rows about statuses, each with what it says.
    fn page() -> Vec<(String, Meaning)> {
        let rows = rows()
            .into_iter()
            .filter(|cells| cells[0].starts_with(|c: char| c.is_ascii_digit()));
        rows.map(|cells| (cells[0].clone(), named(&cells[1]))).collect()
    }

    fn rows() -> Vec<Vec<String>> {
        let page = include_str!("../../../../docs/webhooks.md");
        let table = page
            .split("| your answer | outcome | code |")
            .nth(1)
            .expect("the table");
        let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let rows: Vec<Vec<String>> = lines
            .map(|line| {
                line.trim_matches('|')
                    .split('|')
                    .map(|cell| cell.trim().to_owned())
                    .collect()
            })
            .collect();
        assert!(rows.len() > 10);
        rows
    }

    fn named(word: &str) -> Meaning {
        match word {
            "delivered" => Meaning::Delivered,
            "retry" => Meaning::Retry,
            "rejected" => Meaning::Reject,
            "unknown" => Meaning::Unknown,
            other => panic!("{other}"),
        }
    }

    fn expand(statuses: &str) -> Vec<u16> {
        let one = |part: &str| match part.split_once('-') {
            Some((first, last)) => (first.parse().unwrap()..=last.parse().unwrap()).collect::<Vec<u16>>(),
            None => vec![part.parse().unwrap()],
        };
        statuses.split(", ").flat_map(one).collect()
    }

    #[test]
    fn codes_and_texts_name_the_status() {
        let rejects = Rejects::default();
        assert_eq!(
            answered(202, None, " queued as 7\n", &rejects),
            Outcome::receipt("queued as 7")
        );
        assert_eq!(answered(204, None, "", &rejects), Outcome::delivered());
        let (code, error) = ("http_429".to_owned(), "answered 429: slow down".to_owned());
        let after = Some(Duration::from_secs(7));
        assert_eq!(
            answered(429, after, "slow down", &rejects),
            Outcome::Retry { after, code, error }
        );
        let (code, error) = ("http_302".to_owned(), "answered 302".to_owned());
        assert_eq!(
            answered(302, None, "", &rejects),
            Outcome::Retry {
                after: None,
                code,
                error
            }
        );
        let (code, error) = ("http_500".to_owned(), "answered 500: oops".to_owned());
        assert_eq!(answered(500, after, "oops", &rejects), Outcome::Unknown { code, error });
    }

    #[test]
    fn gone_pauses_whether_it_rejects_or_not() {
        let none = Rejects::only([]).unwrap();
        assert!(answered(410, None, "", &Rejects::default()).says_gone());
        assert!(answered(410, None, "", &none).says_gone());
        assert!(!answered(404, None, "", &none).says_gone());
        assert!(!answered(200, None, "http_410", &none).says_gone());
        assert!(!failed(Failure::Blocked, String::new()).says_gone());
    }

    #[test]
    fn a_destination_may_say_which_statuses_reject() {
        let rejects = Rejects::only([404, 501]).unwrap();
        assert_eq!(meaning(404, false, &rejects), Meaning::Reject);
        assert_eq!(meaning(501, false, &rejects), Meaning::Reject);
        assert_eq!(meaning(400, false, &rejects), Meaning::Retry);
        for wrong in [0, 100, 200, 204, 299, 600, 999] {
            assert_eq!(Rejects::only([400, wrong]).unwrap_err().field, "rejects");
        }
    }

    const NOON: &str = "Sun, 06 Nov 1994 12:00:00 GMT";

    fn wish(value: &str, date: Option<&str>) -> Option<u64> {
        let now = UNIX_EPOCH + Duration::from_secs(784_123_200 + 60);
        retry_after(value.as_bytes(), date.map(str::as_bytes), now).map(|d| d.as_secs())
    }

    #[test]
    fn a_wish_is_seconds_or_a_date() {
        assert_eq!(wish("120", None), Some(120));
        assert_eq!(wish(" 7 ", None), Some(7));
        assert_eq!(wish("0", None), Some(0));
        assert_eq!(wish("Sun, 06 Nov 1994 12:01:30 GMT", Some(NOON)), Some(90));
        assert_eq!(wish("Sunday, 06-Nov-94 12:01:30 GMT", Some(NOON)), Some(90));
        assert_eq!(wish("Sun Nov  6 12:01:30 1994", Some(NOON)), Some(90));
        assert_eq!(
            wish("Sun, 06 Nov 1994 12:01:30 GMT", None),
            Some(30),
            "our clock, for want of theirs"
        );
        assert_eq!(wish("Sun, 06 Nov 1994 12:01:30 GMT", Some("yesterday")), Some(30));
    }

    #[test]
    fn an_odd_wish_is_cut_or_no_wish() {
        assert_eq!(wish("99999999", None), Some(86_400));
        assert_eq!(wish(&"9".repeat(400), None), Some(86_400));
        assert_eq!(wish("Fri, 31 Dec 9999 23:59:59 GMT", Some(NOON)), Some(86_400));
        for odd in [
            "", "-5", "+5", "1.5", "1e9", "5s", "1, 2", "soon", "0x10", "٣", "NaN", "\u{0}", NOON,
        ] {
            assert_eq!(wish(odd, Some("Sun, 06 Nov 1994 12:00:01 GMT")), None, "{odd:?}");
        }
    }

    #[test]
    fn random_bytes_never_panic_and_never_wish_too_much() {
        let mut dice = fastrand::Rng::with_seed(17);
        let alphabet = b"0123456789 ,:-GMTSunNovFri\xff\0+.";
        for round in 0..200_000 {
            let mut bytes: Vec<u8> = match round % 3 {
                0 => (0..dice.usize(..40)).map(|_| dice.u8(..)).collect(),
                1 => (0..dice.usize(..40))
                    .map(|_| alphabet[dice.usize(..alphabet.len())])
                    .collect(),
                _ => NOON.into(),
            };
            if round % 3 == 2 {
                let at = dice.usize(..bytes.len());
                bytes[at] = dice.u8(..);
            }
            let date = bytes.clone();
            let now = UNIX_EPOCH + Duration::from_secs(dice.u64(..4_000_000_000));
            let wish = retry_after(&bytes, dice.bool().then_some(&date), now);
            assert!(wish.is_none_or(|wish| wish <= LONGEST_WISH));
        }
    }
}
