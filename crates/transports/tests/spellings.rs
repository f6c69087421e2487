//! Every way we know to spell an address that is not to be reached: each is refused when the destination is made, or is a name, and
//! is then judged by the address that it leads to.

use posthouse_core::{Outcome, Transport};
use posthouse_transports::http::Http;
use std::net::IpAddr;

use crate::receiver::delivery;

/// Refused when the destination is made.
const REFUSED: &[&str] = &[
    // Loopback, as it is written.
    "http://127.0.0.1/",
    "http://127.0.0.1:80/",
    "http://127.0.0.1./",
    "http://127.0.0.2/",
    "http://127.255.255.254/",
    "https://127.0.0.1/",
    "HTTP://127.0.0.1/",
    "hTTp://127.0.0.1",
    "http://127.0.0.1?x",
    "http://127.0.0.1:8080/path?query",
    // As a number.
    "http://2130706433/",
    "http://2130706433./",
    "http://017700000001/",
    "http://0017700000001/",
    "http://000000000000017700000001/",
    "http://0x7f000001/",
    "http://0X7F000001/",
    "http://0x7F000001./",
    "http://0x00000000007f000001/",
    // Short.
    "http://127.1/",
    "http://127.1./",
    "http://127.0.1/",
    "http://127.65530/",
    "http://127.0.65530/",
    "http://0x7f.1/",
    "http://0x7f.0x1/",
    "http://0177.1/",
    "http://0177.0.0.1/",
    "http://0177.0000.0000.0001/",
    "http://00177.0.0.01/",
    "http://0x7f.0x0.0x0.0x1/",
    "http://0x7f.0.0.1/",
    "http://0x7F.00.0x0.01/",
    "http://127.0.0.0x1/",
    "http://127.000.000.001/",
    "http://0x7f.0.1/",
    "http://127.0x000001/",
    // Out of range, or nearly an address: nobody's to guess.
    "http://256.0.0.1/",
    "http://127.0.0.256/",
    "http://4294967296/",
    "http://0x100000000/",
    "http://127.0.0.1.1/",
    "http://1.2.3.08/",
    "http://127..1/",
    "http://127.0.0.0x/x.0x100/",
    // Percent-encoded.
    "http://%31%32%37.0.0.1/",
    "http://127%2e0%2e0%2e1/",
    "http://127%2E0.0.1/",
    "http://%6c%6f%63%61%6c%68%6f%73%74/",
    "http://%32%31%33%30%37%30%36%34%33%33/",
    "http://127.0.0.1%00.public.example/",
    "http://127.0.0.1%2f.public.example/",
    "http://127.0.0.1%20/",
    "http://127.0.0.1%0d%0a/",
    "http://public.example%2540127.0.0.1/",
    // Other digits and dots, which IDNA makes plain.
    "http://①②⑦.⓪.⓪.①/",
    "http://１２７.０.０.１/",
    "http://127。0。0。1/",
    "http://127．0．0．1/",
    "http://127｡0｡0｡1/",
    "http://１２７。０。０。１/",
    "http://𝟏𝟐𝟕.𝟎.𝟎.𝟏/",
    "http://²¹³⁰⁷⁰⁶⁴³³/",
    "http://０x7f.1/",
    "http://0ｘ7ｆ000001/",
    "http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/",
    "http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1/",
    "http://127.0.0\u{ad}.1/",
    "http://127.0.0.1\u{200b}/",
    "http://127\u{2060}.0.0.1/",
    // Names of this machine.
    "http://localhost/",
    "http://localhost./",
    "http://LOCALHOST/",
    "http://LocalHost.:80/",
    "http://foo.localhost/",
    "http://foo.localhost./",
    "http://a.b.LOCALHOST/",
    "http://localhost.localdomain/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "http://ｌｏｃａｌｈｏｓｔ/",
    "http://loca\u{ad}lhost/",
    "http://ʟocalhost%2elocalhost/",
    // IPv6, in all its forms.
    "http://[::1]/",
    "http://[::1]:80/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[0000:0000:0000:0000:0000:0000:0000:0001]/",
    "http://[::0001]/",
    "http://[0::1]/",
    "http://[::0:1]/",
    "http://[::]/",
    "http://[0:0:0:0:0:0:0:0]/",
    "http://[::0.0.0.1]/",
    "http://[::127.0.0.1]/",
    "http://[::7f00:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::FFFF:7F00:1]/",
    "http://[::ffff:7f00:0001]/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[::ffff:8.8.8.8]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::8.8.8.8]/",
    "http://[64:ff9b:1::a00:1]/",
    "http://[64:ff9b:1:7f00:0:100::]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a00:1::1]/",
    "http://[2002:808:808::1]/",
    "http://[2001:0:7f00:1::]/",
    "http://[2001::1]/",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "http://[2606:4700::5efe:7f00:1]/",
    "http://[2606:4700:0:0:200:5efe:10.0.0.1]/",
    "http://[fc00::1]/",
    "http://[fd00::1]/",
    "http://[FDFF:FFFF::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fd20:ce::254]/",
    "http://[fe80::1]/",
    "http://[fe80::a9fe:a9fe]/",
    "http://[febf::1]/",
    "http://[fec0::1]/",
    "http://[feff::1]/",
    "http://[ff02::1]/",
    "http://[ff0e::1]/",
    "http://[100::1]/",
    "http://[2001:2::1]/",
    "http://[2001:10::1]/",
    "http://[2001:20::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[5f00::1]/",
    "http://[4000::1]/",
    "http://[1::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[::1%25lo]/",
    "http://[::1%lo]/",
    "http://[::1",
    "http://[::1]x/",
    "http://[::1]@public.example/",
    "http://::1/",
    "http://[127.0.0.1]/",
    "http://[::127.1]/",
    "http://[::ffff:0x7f.0.0.1]/",
    "http://[::ffff:2130706433]/",
    "http://[v1.127.0.0.1]/",
    "http://[]/",
    // Other special ones of IPv4.
    "http://0/",
    "http://0.0.0.0/",
    "http://0.0.0.0:8080/",
    "http://0x0/",
    "http://00000/",
    "http://0.1.2.3/",
    "http://10.0.0.1/",
    "http://10.255.255.255/",
    "http://167772161/",
    "http://0xa000001/",
    "http://012.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.0.1/",
    "http://192.168.1/",
    "http://0300.0250.0.1/",
    "http://3232235521/",
    "http://169.254.169.254/",
    "http://169.254.169.254./latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0xA9.0xFE.0xA9.0xFE/",
    "http://0251.0376.0251.0376/",
    "http://025177524776/",
    "http://169.254.43518/",
    "http://169.16689662/",
    "http://169.254.170.2/",
    "http://169.254.0.1/",
    "http://100.64.0.1/",
    "http://100.127.255.255/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://192.0.0.1/",
    "http://192.0.0.192/",
    "http://192.0.2.1/",
    "http://198.51.100.1/",
    "http://203.0.113.1/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://198.19.255.255/",
    "http://224.0.0.1/",
    "http://239.255.255.255/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://4294967295/",
    "http://0xffffffff/",
    // Users, and what pretends to be a host.
    "http://public.example@127.0.0.1/",
    "http://public.example:80@127.0.0.1/",
    "http://user:password@public.example/",
    "http://user@public.example/",
    "http://@public.example/",
    "http://:@public.example/",
    "http://127.0.0.1@public.example/",
    "http://public.example@127.0.0.1@public.example/",
    "http://public.example%40@127.0.0.1/",
    "http://public.example#@127.0.0.1/",
    "http://127.0.0.1#public.example",
    "http://127.0.0.1/#public.example",
    // Backslashes, tabs, lines and spaces, which lenient readers repair.
    "http://127.0.0.1\\@public.example/",
    "http://public.example\\@127.0.0.1/",
    "http:\\\\127.0.0.1\\",
    "http://\\127.0.0.1/",
    "http://127.0.\t0.1/",
    "http://127.0.\n0.1/",
    "http://127.0.\r\n0.1/",
    "h\nttp://127.0.0.1/",
    "\thttp://127.0.0.1/",
    " http://127.0.0.1/",
    "http://127.0.0.1 /",
    "http://127.0.0.1/ HTTP/1.1\r\nx-evil: 1",
    "http://public.example/\r\nx-evil: 1",
    "http://public.example /",
    "http://public.example\0/",
    "http://public.example\u{a0}/",
    "http://public.example\u{3000}/",
    // Slashes and schemes.
    "http:127.0.0.1/",
    "http:/127.0.0.1/",
    "http:///127.0.0.1/",
    "http:////127.0.0.1/",
    "http:public.example",
    "http:///public.example/",
    "//127.0.0.1/",
    "127.0.0.1",
    "public.example/path",
    "ftp://public.example/",
    "file:///etc/passwd",
    "file://127.0.0.1/",
    "gopher://127.0.0.1:6379/_INFO",
    "dict://127.0.0.1:11211/",
    "ws://127.0.0.1/",
    "unix:/var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "data:text/plain,x",
    "javascript:alert(1)",
    "jar:http://127.0.0.1!/",
    "view-source:http://127.0.0.1/",
    "http://",
    "http://.",
    "http://./",
    "http://../",
    "http://.127.0.0.1/",
    "http://public..example/",
    "http://.public.example/",
    "http://:80/",
    "http://?x",
    "",
    "http",
    // Ports.
    "http://127.0.0.1:/",
    "http://public.example:0/",
    "http://public.example:65536/",
    "http://public.example:80:80/",
    "http://public.example:-1/",
    "http://public.example:8o/",
];

/// Names, for a resolver to answer: here it says that they are this machine.
const NAMES: &[&str] = &[
    "http://public.example/",
    "http://PUBLIC.example./",
    "http://public.example:80/",
    "http://127.0.0.1.nip.io/",
    "http://7f000001.nip.io/",
    "http://0x7f.1.public.example/",
    "http://localhost.public.example/",
    "http://localhosts/",
    "http://notlocalhost/",
    "http://metadata.google.internal/",
    "http://metadata/",
    "http://instance-data/",
    "http://kubernetes.default.svc/",
    "http://router/",
    "http://ip6-localhost/",
    "http://ip6-loopback/",
    "http://broadcasthost/",
    "http://127.0.0.1a/",
    "http://0x7g.1.x/",
    "http://127-0-0-1.example/",
    "http://xn--bcher-kva.example/",
    "http://bücher.example/",
    "http://example.com%2f@127.0.0.1.example/",
    "http://public.example/@127.0.0.1/",
    "http://public.example/?@127.0.0.1/",
    "http://public.example/127.0.0.1",
    "http://public.example?x=http://127.0.0.1/",
];

/// Public addresses, in spellings that are as odd.
const PUBLIC: &[(&str, &str)] = &[
    ("http://8.8.8.8/", "http://8.8.8.8#"),
    ("http://134744072/", "http://8.8.8.8#"),
    ("http://0x08080808/", "http://8.8.8.8#"),
    ("http://010.8.8.8/", "http://8.8.8.8#"),
    ("http://8.526344/", "http://8.8.8.8#"),
    ("http://⑧.⑧.⑧.⑧/", "http://8.8.8.8#"),
    ("http://02130706433/", "http://17.99.141.27#"),
    ("http://0127.0.0.1/", "http://87.0.0.1#"),
    ("http://172.32.0.1/", "http://172.32.0.1#"),
    (
        "http://[2606:4700:4700::1111]:8080/",
        "http://[2606:4700:4700::1111]:8080#",
    ),
    (
        "http://[2606:4700:4700:0:0:0:0:1111]/",
        "http://[2606:4700:4700::1111]#",
    ),
    (
        "http://[2A00:1450:4001:81B::200E]/",
        "http://[2a00:1450:4001:81b::200e]#",
    ),
];

#[test]
fn there_are_enough_of_them() {
    assert!(REFUSED.len() + NAMES.len() + PUBLIC.len() >= 250);
}

#[test]
fn an_address_that_is_not_public_is_refused_in_every_spelling() {
    let passed: Vec<_> = REFUSED
        .iter()
        .filter_map(|url| Some((url, Http::to(url).ok()?)))
        .collect();
    assert!(passed.is_empty(), "{passed:#?}");
}

#[tokio::test]
async fn a_name_is_judged_by_where_it_leads() {
    for url in NAMES {
        let inside: IpAddr = "127.0.0.1".parse().unwrap();
        // One has a user in it only for those who read carelessly; it is refused for that.
        let Ok(http) = Http::builder(url)
            .resolver(move |_| async move { Ok(vec![inside]) })
            .build()
        else {
            assert!(url.contains("%2f@"), "{url}");
            continue;
        };
        let outcome = http.send(&delivery()).await;
        assert!(
            matches!(&outcome, Outcome::Retry { code, .. } if code == "blocked_address"),
            "{url}: {outcome:?}"
        );
    }
}

#[test]
fn a_public_address_is_what_it_is_in_every_spelling() {
    for (url, name) in PUBLIC {
        let http = Http::to(url).expect(url);
        assert!(http.name().starts_with(name), "{url}: {}", http.name());
    }
}

#[test]
fn what_is_private_is_refused_with_the_key_to_set() {
    let said = |url: &str| Http::to(url).unwrap_err().to_string();
    for url in [
        "http://10.0.0.1/secret",
        "http://0x7f.1/",
        "http://localhost/",
        "http://[fd12::1]/",
    ] {
        assert!(said(url).contains("set allow_private = true"), "{}", said(url));
        assert!(!said(url).contains("secret"));
        Http::builder(url).allow_private(true).build().expect(url);
    }
    assert!(said("http://224.0.0.1/").contains("name it in allow"));
    Http::builder("http://10.0.0.1/")
        .allow(["10.0.0.0/24"])
        .build()
        .unwrap();
    Http::builder("http://localhost/").allow(["localhost"]).build().unwrap();
    Http::builder("http://10.0.0.1/")
        .allow(["10.0.1.0/24"])
        .build()
        .unwrap_err();
}

#[test]
fn a_metadata_service_is_refused_in_every_spelling_and_policy() {
    for url in [
        "http://169.254.169.254/",
        "http://2852039166/",
        "http://0xa9.254.0251.0xfe/",
        "http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[fd00:ec2::254]/",
        "http://[FD00:0EC2:0:0:0:0:0:0254]/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
    ] {
        let refused = Http::builder(url)
            .allow_private(true)
            .allow(["0.0.0.0/0", "::/0"])
            .build()
            .expect_err(url);
        assert!(
            refused.problem.contains("nothing is ever sent there"),
            "{url}: {refused}"
        );
    }
}
