//! What a delivery does, as an identity: so that the receipt of an earlier one can stand for a later one.

use crate::{Delivery, Digest};

/// The same content about the same topic, for the same tenant of the same namespace, at the same destination: done once, it need not
/// be done again. Another destination is another effect.
///
/// SHA-256 over tenant, namespace, topic, the content's [`Digest`] and the destination, each prefixed by its length; the SQL
/// functions compute the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Effect(pub Digest);

impl Effect {
    /// What sending it there does. The content is read, not trusted: whoever enqueued it may have brought no digest.
    pub fn of(delivery: &Delivery, destination: &str) -> Self {
        let content = Digest::of(&delivery.content_type, &delivery.payload);
        Self(Digest::of_fields(&[
            delivery.tenant.as_bytes(),
            delivery.namespace.as_bytes(),
            delivery.topic.as_bytes(),
            content.as_bytes(),
            destination.as_bytes(),
        ]))
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// What is kept of a delivery for later ones of the same effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// What the destination returned. It was delivered, also where it returned nothing.
    pub text: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Headers, Kind, MessageId};

    fn delivery() -> Delivery {
        Delivery {
            id: MessageId(uuid::Uuid::nil()),
            epoch: 1,
            generation: 1,
            attempt: 1,
            tenant: "acme".into(),
            namespace: "shop".into(),
            topic: "t".into(),
            order_key: None,
            content_type: "text/plain".into(),
            payload: b"x".to_vec(),
            headers: Headers::new(),
            kind: Kind::Message,
            parent: None,
            destination: None,
            ticket: None,
        }
    }

    #[test]
    fn whatever_is_done_elsewhere_or_for_others_is_another_effect() {
        let one = delivery();
        let same = Delivery {
            id: MessageId(uuid::Uuid::from_u128(7)),
            epoch: 9,
            attempt: 3,
            order_key: Some("k".into()),
            ..delivery()
        };
        assert_eq!(Effect::of(&one, "d"), Effect::of(&same, "d"));
        let others = [
            Delivery {
                tenant: "zeta".into(),
                ..delivery()
            },
            Delivery {
                namespace: "other".into(),
                ..delivery()
            },
            Delivery {
                topic: "u".into(),
                ..delivery()
            },
            Delivery {
                content_type: "text/html".into(),
                ..delivery()
            },
            Delivery {
                payload: b"y".to_vec(),
                ..delivery()
            },
        ];
        for other in &others {
            assert_ne!(Effect::of(&one, "d"), Effect::of(other, "d"), "{other:?}");
        }
        assert_ne!(Effect::of(&one, "d"), Effect::of(&one, "e"));
        assert_ne!(Effect::of(&one, "d"), Effect::of(&one, ""));
    }
}
