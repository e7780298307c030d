//! Tests which network a step can reach.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("network::deny_hides_the_hosts_loopback", deny_blocks_host_loopback).needs(NEEDS_PYTHON),
    case("network::deny_blocks_datagrams", deny_blocks_datagrams).needs(NEEDS_PYTHON),
    case("network::deny_blocks_abstract_sockets", deny_blocks_abstract_sockets).needs(NEEDS_PYTHON),
    case("network::deny_keeps_a_private_loopback", deny_keeps_private_loopback).needs(NEEDS_PYTHON),
    case("network::deny_shows_only_the_loopback_interface", deny_shows_only_loopback),
    case("network::allow_reaches_the_host_and_raises_the_tier", allow_reaches_host_and_raises_tier).needs(NEEDS_PYTHON),
];

fn connect_program(port: u16) -> String {
    format!(
        "import socket, sys\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 5)\nexcept OSError as e:\n    \
         print(e.errno)\n    sys.exit(0)\nsys.exit(1)"
    )
}

fn bind_listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener of the test");
    listener.set_nonblocking(true).expect("a flag");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

pub(crate) fn deny_blocks_host_loopback(env: &TestEnvironment) {
    let (listener, port) = bind_listener();
    let repo = env.repo(&TestSpec::from_steps([TestStep::python("it", &connect_program(port))]));
    repo.run().exits(0);
    assert_eq!(listener.accept().expect_err("nobody may come").kind(), ErrorKind::WouldBlock);
    assert_eq!(repo.step("it")["network"], "deny");
    assert_eq!(repo.step("it")["enforcement"]["network_namespace"]["state"], "enforced");
    assert_eq!(repo.evidence("verify.it")["tier"], env.lowest_tier());
}

fn deny_blocks_datagrams(env: &TestEnvironment) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket of the test");
    socket.set_nonblocking(true).expect("a flag");
    let port = socket.local_addr().expect("an address").port();
    let program = format!(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry:\n    s.sendto(b'x', ('127.0.0.1', {port}))\n\
         except OSError:\n    pass"
    );
    let repo = env.repo(&TestSpec::from_steps([TestStep::python("it", &program)]));
    repo.run().exits(0);
    assert_eq!(socket.recv(&mut [0; 8]).expect_err("nothing may come").kind(), ErrorKind::WouldBlock);
}

fn deny_blocks_abstract_sockets(env: &TestEnvironment) {
    use std::os::linux::net::SocketAddrExt as _;
    let name = format!("{}-socket", env.marker());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a listener of the test");
    listener.set_nonblocking(true).expect("a flag");
    let program = format!(
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry:\n    s.connect('\\0{name}')\nexcept OSError:\n    \
         sys.exit(0)\nsys.exit(1)"
    );
    let repo = env.repo(&TestSpec::from_steps([TestStep::python("it", &program)]));
    repo.run().exits(0);
    assert_eq!(listener.accept().expect_err("nobody may come").kind(), ErrorKind::WouldBlock);
}

fn deny_keeps_private_loopback(env: &TestEnvironment) {
    let program = r"
import socket
for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    try:
        server = socket.socket(family)
    except OSError:
        continue
    server.bind((host, 0))
    server.listen()
    client = socket.create_connection(server.getsockname()[:2], 5)
    peer, _ = server.accept()
    client.sendall(b'hello')
    assert peer.recv(5) == b'hello'
print('talked')
";
    let repo = env.repo(&TestSpec::from_steps([TestStep::python("it", program)]));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "talked\n");
}

fn deny_shows_only_loopback(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '; ls /sys/class/net 2>/dev/null || true",
    ));
    repo.run().exits(0);
    let text = repo.step("it")["stdout_preview"].as_str().expect("a string").to_owned();
    assert!(text.lines().all(|line| line == "lo") && !text.is_empty(), "{text}");
}

fn allow_reaches_host_and_raises_tier(env: &TestEnvironment) {
    let (listener, port) = bind_listener();
    let program = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)");
    let repo = env.repo(&TestSpec::from_steps([TestStep::python("it", &program).with_field("network: allow")]));
    repo.run().exits(0);
    listener.accept().expect("the step came");
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["tier"], 2);
    assert_eq!(evidence["tier_reasons"], env.tier_reasons(&["network_allowed"]));
    assert_eq!(evidence["steps"][0]["enforcement"]["network_namespace"]["state"], "not_requested");
    repo.run_with(&["--max-tier", "1"]).exits(5);
    assert_eq!(listener.accept().expect_err("a step above the tier ran").kind(), ErrorKind::WouldBlock);
}
