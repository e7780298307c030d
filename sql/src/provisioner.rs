//! Provides database servers: programs that are started, or an instance of a service.

use crate::server_files::ServerError;

/// A source of database servers.
pub trait Provisioner {
    /// A handle of a server. The server ends with its last handle, unless a service ends it.
    type Server: Clone;

    /// Starts or requests a server.
    ///
    /// # Errors
    /// There is no server. This is not a verdict on any statement.
    fn provision(&self) -> Result<Self::Server, ServerError>;

    /// Reports whether a server accepts further databases.
    fn is_usable(&self, server: &Self::Server) -> bool;
}

/// A provisioner with the server that it provided last.
pub struct Provisioned<P: Provisioner> {
    provisioner: P,
    server: Option<P::Server>,
}

impl<P: Provisioner> Provisioned<P> {
    /// Creates a value without a server.
    pub fn new(provisioner: P) -> Self {
        Self { provisioner, server: None }
    }

    /// Returns a server, which is provided when it is first needed, and again when it is no longer usable.
    ///
    /// # Errors
    /// There is no server.
    pub fn server(&mut self) -> Result<P::Server, ServerError> {
        if let Some(server) = self.server.as_ref().filter(|server| self.provisioner.is_usable(server)) {
            return Ok(server.clone());
        }
        // A server that is not usable ends before the next one starts.
        self.server = None;
        let server = self.provisioner.provision()?;
        self.server = Some(server.clone());
        Ok(server)
    }

    /// Returns a server after a preparation on it. If the preparation fails, it is tried once more on another server: a
    /// server that was killed may refuse connections before it has ended.
    ///
    /// # Errors
    /// There is no server, or the preparation fails.
    pub(crate) fn prepared_server(
        &mut self,
        prepare: impl Fn(&P::Server) -> Result<(), ServerError>,
    ) -> Result<P::Server, ServerError> {
        let first = self.server()?;
        if prepare(&first).is_ok() {
            return Ok(first);
        }
        self.server = None;
        let second = self.server()?;
        prepare(&second).map(|()| second)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Provides numbered servers; one is usable until its flag is set.
    struct Numbers(Cell<u32>);

    impl Provisioner for Numbers {
        type Server = (u32, Rc<Cell<bool>>);

        fn provision(&self) -> Result<Self::Server, ServerError> {
            self.0.set(self.0.get() + 1);
            Ok((self.0.get(), Rc::default()))
        }

        fn is_usable(&self, server: &Self::Server) -> bool {
            !server.1.get()
        }
    }

    #[test]
    fn server_is_kept_while_it_is_usable() {
        let mut provisioned = Provisioned::new(Numbers(Cell::new(0)));
        let first = provisioned.server().expect("a server");
        assert_eq!(provisioned.server().expect("a server").0, 1);
        first.1.set(true);
        assert_eq!(provisioned.server().expect("a server").0, 2);
    }

    #[test]
    fn failed_preparation_is_tried_on_another_server() {
        let mut provisioned = Provisioned::new(Numbers(Cell::new(0)));
        let failure = || ServerError::NotReady { message: String::new() };
        let second = provisioned.prepared_server(|server| if server.0 == 1 { Err(failure()) } else { Ok(()) });
        assert_eq!(second.expect("a server").0, 2);
        assert!(provisioned.prepared_server(|_| Err(failure())).is_err());
        assert_eq!(provisioned.prepared_server(|_| Ok(())).expect("a server").0, 3);
    }
}
