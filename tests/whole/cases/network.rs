//! Tests which network a step can reach.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;

use crate::environment::TestEnvironment;
use crate::needs::{Case, NEEDS_PYTHON, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("network::deny_hides_the_hosts_loopback", deny_tcp).needs(NEEDS_PYTHON),
    case("network::deny_stops_datagrams", deny_udp).needs(NEEDS_PYTHON),
    case("network::deny_stops_abstract_sockets", deny_abstract).needs(NEEDS_PYTHON),
    case("network::deny_leaves_loopback_inside", loopback_inside).needs(NEEDS_PYTHON),
    case("network::deny_shows_no_other_interface", only_loopback),
    case("network::allow_reaches_the_host_and_raises_the_tier", allow).needs(NEEDS_PYTHON),
];

fn connect_to(port: u16) -> String {
    format!(
        "import socket, sys\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 5)\nexcept OSError as e:\n    \
         print(e.errno)\n    sys.exit(0)\nsys.exit(1)"
    )
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener of the test");
    listener.set_nonblocking(true).expect("a flag");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

pub(crate) fn deny_tcp(env: &TestEnvironment) {
    let (listener, port) = listener();
    let repo = env.repo(&Spec::of_steps([Step::python("it", &connect_to(port))]));
    repo.run().exits(0);
    assert_eq!(listener.accept().expect_err("nobody may come").kind(), ErrorKind::WouldBlock);
    assert_eq!(repo.step("it")["network"], "deny");
    assert_eq!(repo.step("it")["enforcement"]["network_namespace"]["state"], "enforced");
    assert_eq!(repo.evidence("verify.it")["tier"], env.least_tier());
}

fn deny_udp(env: &TestEnvironment) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket of the test");
    socket.set_nonblocking(true).expect("a flag");
    let port = socket.local_addr().expect("an address").port();
    let program = format!(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry:\n    s.sendto(b'x', ('127.0.0.1', {port}))\n\
         except OSError:\n    pass"
    );
    let repo = env.repo(&Spec::of_steps([Step::python("it", &program)]));
    repo.run().exits(0);
    assert_eq!(socket.recv(&mut [0; 8]).expect_err("nothing may come").kind(), ErrorKind::WouldBlock);
}

fn deny_abstract(env: &TestEnvironment) {
    use std::os::linux::net::SocketAddrExt as _;
    let name = format!("{}-socket", env.marker());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a listener of the test");
    listener.set_nonblocking(true).expect("a flag");
    let program = format!(
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry:\n    s.connect('\\0{name}')\nexcept OSError:\n    \
         sys.exit(0)\nsys.exit(1)"
    );
    let repo = env.repo(&Spec::of_steps([Step::python("it", &program)]));
    repo.run().exits(0);
    assert_eq!(listener.accept().expect_err("nobody may come").kind(), ErrorKind::WouldBlock);
}

fn loopback_inside(env: &TestEnvironment) {
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
    let repo = env.repo(&Spec::of_steps([Step::python("it", program)]));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "talked\n");
}

fn only_loopback(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(
        "sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '; ls /sys/class/net 2>/dev/null || true",
    ));
    repo.run().exits(0);
    let text = repo.step("it")["stdout_preview"].as_str().expect("a string").to_owned();
    assert!(text.lines().all(|line| line == "lo") && !text.is_empty(), "{text}");
}

fn allow(env: &TestEnvironment) {
    let (listener, port) = listener();
    let program = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)");
    let repo = env.repo(&Spec::of_steps([Step::python("it", &program).with("network: allow")]));
    repo.run().exits(0);
    listener.accept().expect("the step came");
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["tier"], 2);
    assert_eq!(evidence["tier_reasons"], env.tier_reasons(&["network_allowed"]));
    assert_eq!(evidence["steps"][0]["enforcement"]["network_namespace"]["state"], "not_requested");
    repo.run_with(&["--max-tier", "1"]).exits(5);
    assert_eq!(listener.accept().expect_err("a step above the tier ran").kind(), ErrorKind::WouldBlock);
}
