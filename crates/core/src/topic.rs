//! Which topics a route serves.

use std::borrow::Cow;

use crate::{Invalid, digest::tag};

/// A topic as it is shown to people: one that holds a URL as prefix, scheme, host and a hash that tells it from others, because
/// everything else of a URL may be a secret. Any other topic as it is.
pub fn shown(topic: &str) -> Cow<'_, str> {
    let Some((before, after)) = topic.split_once("://") else {
        return Cow::Borrowed(topic);
    };
    let authority = after.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    // What stands before the last sign is a name and a password.
    let host = authority.rsplit('@').next().unwrap_or_default();
    Cow::Owned(format!("{before}://{host}#{}", tag(topic)))
}

/// A pattern over topics: `*` stands for any text, also for none and over dots; everything else stands for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPattern {
    parts: Vec<String>,
}

impl TopicPattern {
    /// Reads a pattern, such as `usage.*` or `orders.created`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() {
            return Err(Invalid::new(
                "topic",
                "is empty; write a topic, or a pattern such as orders.*",
            ));
        }
        Ok(Self {
            parts: text.split('*').map(str::to_owned).collect(),
        })
    }

    /// Whether a topic is of this pattern.
    pub fn matches(&self, topic: &str) -> bool {
        let Some((first, rest)) = self.parts.split_first() else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else {
            return topic == first;
        };
        let Some(mut left) = topic.strip_prefix(first.as_str()) else {
            return false;
        };
        // Each part as early as possible: what is left for the later ones is then longest.
        for part in middle {
            let Some(at) = left.find(part.as_str()) else {
                return false;
            };
            left = &left[at + part.len()..];
        }
        left.ends_with(last.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_topic_that_holds_a_url_only_the_host_is_shown() {
        assert_eq!(shown("order.placed"), "order.placed");
        let secret = "http:https://me:pass@shop.example:8443/SECRET/b?token=SECRET#SECRET";
        let told = shown(secret);
        assert!(told.starts_with("http:https://shop.example:8443#"), "{told}");
        assert!(!told.contains("SECRET") && !told.contains("pass"), "{told}");
        assert_ne!(told, shown("http:https://shop.example:8443/other"));
        assert!(!shown("http:https://shop.example?key=SECRET").contains("SECRET"));
        assert!(!shown("http:https://shop.example\\SECRET").contains("SECRET"));
    }

    #[test]
    fn a_star_stands_for_any_text() {
        let cases = [
            ("orders", "orders", true),
            ("orders", "orders.x", false),
            ("usage.*", "usage.snapshot", true),
            ("usage.*", "usage.a.b", true),
            ("usage.*", "usage", false),
            ("usage.*", "usage.", true),
            ("*", "anything.at.all", true),
            ("*.created", "orders.created", true),
            ("*.created", "created", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ü*", "überweisung", true),
        ];
        for (pattern, topic, expected) in cases {
            let read = TopicPattern::parse(pattern).unwrap();
            assert_eq!(read.matches(topic), expected, "{pattern} over {topic}");
        }
    }

    #[test]
    fn an_empty_pattern_is_refused() {
        assert_eq!(TopicPattern::parse("").unwrap_err().field, "topic");
    }
}
