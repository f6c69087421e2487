//! The beginning of a saga, in the caller's transaction.

use serde::Serialize;
use serde_json::Value;

use super::{
    Ctx, Definition, Event, Happened, Live, Owner, Snapshot,
    carrier::time_of,
    change::{MOST_DEPTH, fits},
    decide,
    view::{SagaRow, state_words},
};
use crate::{
    Digest, Error, Invalid, Limits, Message, SagaId,
    message::{check_name, check_optional_name},
};

/// A saga to start. The same key of the same namespace, tenant and name is started once: told again, it is answered with the one that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its identity.
    pub id: SagaId,
    /// What it does.
    pub definition: Definition,
    /// What the business knows it by.
    pub key: String,
    /// What it is given.
    pub input: Value,
    /// Whose it is. Empty means nobody's.
    pub tenant: String,
    /// Which application owns it.
    pub namespace: String,
}

/// What starting a saga answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    /// It was written, and exists if the transaction commits.
    New(SagaId),
    /// It was there already, under the same key and with the same input.
    Existing(SagaId),
}

impl Started {
    /// The saga that stands for it, new or not.
    pub const fn id(self) -> SagaId {
        match self {
            Self::New(id) | Self::Existing(id) => id,
        }
    }
}

/// What a store writes for a saga that begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Beginning {
    /// Whose it is.
    pub owner: Owner,
    /// What it does.
    pub definition: Definition,
    /// What the business knows it by.
    pub key: String,
    /// The digest of its input.
    pub digest: Digest,
    /// Where it stands then.
    pub snapshot: Snapshot,
    /// Its first messages.
    pub sends: Vec<Message>,
    /// The first lines of its log.
    pub log: Vec<Happened>,
}

impl Start {
    /// A saga of nobody's, in the default namespace.
    pub fn new<T: Serialize + ?Sized>(
        id: SagaId,
        definition: &Definition,
        key: impl Into<String>,
        input: &T,
    ) -> Result<Self, Invalid> {
        let input = serde_json::to_value(input)
            .map_err(|e| Invalid::new("input", format!("cannot be written as JSON: {e}")))?;
        Ok(Self {
            id,
            definition: definition.clone(),
            key: key.into(),
            input,
            tenant: String::new(),
            namespace: Message::DEFAULT_NAMESPACE.to_owned(),
        })
    }

    /// The same of a tenant's.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// The same in another namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// What is to be written, unless it is there already. Refuses what no store may accept, naming the field.
    pub fn begin(self, limits: &Limits) -> Result<Beginning, Error> {
        check_optional_name("tenant", &self.tenant)?;
        check_name("namespace", &self.namespace)?;
        check_name("key", &self.key)?;
        // Before anything is done with it that goes down as deep as it does.
        if !fits(&self.input) {
            let problem = format!("is nested more than {MOST_DEPTH} deep");
            return Err(Invalid::new("input", problem).into());
        }
        let bytes = self.input.to_string();
        if bytes.len() > limits.payload_bytes {
            let (size, most) = (bytes.len(), limits.payload_bytes);
            return Err(Invalid::new("input", format!("has {size} bytes, at most {most} are allowed")).into());
        }
        if limits.require_tenant && self.tenant.is_empty() {
            return Err(Invalid::new("tenant", "is empty, and this store requires one").into());
        }
        let owner = Owner {
            id: self.id,
            namespace: self.namespace,
            tenant: self.tenant,
        };
        let now = time_of(self.id);
        let ctx = Ctx {
            now,
            began: now,
            roll: 0.5,
            payload_bytes: limits.payload_bytes,
        };
        let snapshot = Snapshot::new(&self.definition, self.input);
        let decision = decide(
            &self.definition,
            owner.id,
            &snapshot,
            &Live::new(),
            &Event::Started,
            ctx,
        )
        .map_err(|refused| Invalid::new("input", refused.0))?;
        let sends = decision.sends.into_iter();
        let sends: Vec<_> = sends
            .map(|errand| errand.message(&self.definition, &owner, now))
            .collect();
        sends.iter().try_for_each(|message| message.check(limits))?;
        Ok(Beginning {
            digest: Digest::of_fields(&[sorted(&snapshot.input).as_bytes()]),
            definition: self.definition,
            key: self.key,
            snapshot: decision.snapshot,
            sends,
            log: decision.log,
            owner,
        })
    }
}

/// As JSON, with the members of objects by name: a program may have told its JSON to keep the order in which they came, which then says nothing.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let text = |(name, value): (&String, &Value)| format!("{}:{}", Value::String(name.clone()), sorted(value));
            let members: Vec<_> = members.into_iter().map(text).collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(sorted).collect();
            format!("[{}]", values.join(","))
        }
        other => other.to_string(),
    }
}

impl Beginning {
    /// As it is listed.
    pub fn row(&self, seq: i64, now: crate::Timestamp) -> SagaRow {
        let (state, reason) = self.snapshot.state();
        SagaRow {
            id: self.owner.id,
            seq,
            namespace: self.owner.namespace.clone(),
            tenant: self.owner.tenant.clone(),
            name: self.definition.name().to_owned(),
            version: self.definition.version(),
            key: self.key.clone(),
            state,
            reason,
            paused: false,
            revision: 1,
            created_at: now,
            updated_at: now,
            finished_at: None,
            unreadable: None,
        }
    }

    /// The words of its state, as a store keeps them.
    pub fn state_words(&self) -> (&'static str, Option<&'static str>) {
        state_words(&self.snapshot)
    }
}
