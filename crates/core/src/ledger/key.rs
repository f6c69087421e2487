//! Whose entry it is.

use crate::{
    Digest, Invalid,
    message::{check_name, check_optional_name},
};

/// Nobody's key of one tenant and scope has to do with that of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryKey {
    /// The tenant; empty for nobody's.
    pub tenant: String,
    /// What the key is for: a route, a consumer, an operation.
    pub scope: String,
    /// The key.
    pub key: String,
}

impl EntryKey {
    /// A key of nobody's.
    pub fn new(scope: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            tenant: String::new(),
            scope: scope.into(),
            key: key.into(),
        }
    }

    /// The same of a tenant's.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// A key for a call that is made for this one: the same each time, and no other's. It does not show the key, but whoever guesses that can tell.
    pub fn child(&self, name: &str) -> String {
        let fields = [&self.tenant, &self.scope, &self.key, name];
        Digest::of_fields(&fields.map(str::as_bytes)).to_string()
    }

    /// Refuses what no store can keep.
    pub fn check(&self) -> Result<(), Invalid> {
        check_optional_name("tenant", &self.tenant)?;
        check_name("scope", &self.scope)?;
        check_name("key", &self.key)
    }
}
