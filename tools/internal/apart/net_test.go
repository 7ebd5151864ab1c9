//go:build linux

package apart

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// network is a bridge in a namespace of its own, and hosts at it, each in one, too.
type network struct {
	t      testing.TB
	prefix string
	hosts  []*host
}

// host is a network namespace with one address; on no network it is this machine, by its loopback address.
type host struct {
	n    *network
	name string
	ns   string
	ip   string
}

// newNetwork makes a network without hosts, or skips the test where that may not be done.
func newNetwork(t testing.TB) *network {
	for _, tool := range []string{"ip", "iptables", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	n := &network{t: t, prefix: fmt.Sprintf("skep%d", os.Getpid())}
	if out, err := exec.Command("ip", "netns", "add", n.bridge()).CombinedOutput(); err != nil {
		t.Skipf("needs network namespaces: %s", out)
	}
	t.Cleanup(func() {
		for _, h := range n.hosts {
			n.run("ip", "netns", "del", h.ns)
		}
		n.run("ip", "netns", "del", n.bridge())
	})
	n.run("ip", "-n", n.bridge(), "link", "add", "br0", "type", "bridge")
	n.run("ip", "-n", n.bridge(), "link", "set", "br0", "up")
	return n
}

func (n *network) bridge() string { return n.prefix + "-br" }

// run runs a command that must succeed.
func (n *network) run(args ...string) {
	n.t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(n.t, err, "%s: %s", strings.Join(args, " "), out)
}

// host adds one.
func (n *network) host(name string) *host {
	if n == nil {
		return &host{name: name, ip: "127.0.0.1"}
	}
	number := len(n.hosts) + 1 // names are of one cluster; a network may have several
	h := &host{n: n, name: name, ns: fmt.Sprintf("%s-%d", n.prefix, number), ip: fmt.Sprintf("10.77.0.%d", number)}
	n.hosts = append(n.hosts, h)
	port := fmt.Sprint("to-", number)
	n.run("ip", "netns", "add", h.ns)
	n.run("ip", "-n", h.ns, "link", "set", "lo", "up")
	n.run("ip", "-n", h.ns, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", n.bridge())
	n.run("ip", "-n", h.ns, "addr", "add", h.ip+"/24", "dev", "eth0")
	n.run("ip", "-n", h.ns, "link", "set", "eth0", "up")
	n.run("ip", "-n", n.bridge(), "link", "set", port, "master", "br0", "up")
	return h
}

// inside is a command that runs on the host.
func (h *host) inside(args ...string) []string {
	if h.n == nil {
		return args
	}
	return append([]string{"ip", "netns", "exec", h.ns}, args...)
}

// deaf has h hear nothing more of another one.
func (h *host) deaf(to *host) {
	h.n.run(h.inside("iptables", "-w", "-A", "INPUT", "-s", to.ip, "-j", "DROP")...)
}

// silent has h send nothing more, not even that its connections are closed.
func (h *host) silent() {
	h.n.run(h.inside("iptables", "-w", "-A", "OUTPUT", "-o", "eth0", "-j", "DROP")...)
}

// slow has h send no more than a rate, such as "2mbit".
func (h *host) slow(rate string) {
	h.n.run(h.inside("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "32kb",
		"latency", "400ms")...)
}

// heal makes all links good.
func (n *network) heal() {
	for _, h := range n.hosts {
		n.run(h.inside("iptables", "-w", "-F")...)
		n.run(h.inside("tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo_fast")...)
	}
}
