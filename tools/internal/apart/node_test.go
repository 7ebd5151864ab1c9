//go:build linux

package apart

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/self"
)

const (
	clientPort = "7420"
	peerPort   = "7423"
	tenant     = "prod"
	// patience is how long is waited for what must happen at some time.
	patience = 3 * time.Minute
)

// cluster is its nodes, and what they share.
type cluster struct {
	t      testing.TB
	net    *network
	dir    string
	op     *host // an operator's machine
	nodes  []*node
	builds []string // programs; "": this one
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	sizes  string // settings of every node: how much it may have
	drives string // and how large its drives are
	creds  string // and who is let in besides
	// prepare is called with each node before it is started.
	prepare func(i int, n *node)
}

// node is a server: one process after another.
type node struct {
	c     *cluster
	host  *host
	at    [4]string // of clients, of nodes, of HTTP and RESP ("none": not)
	name  string
	build string
	more  []string // environment
	files []string // flags that say what its devices are
	cmd   *exec.Cmd
	ended chan error
	log   *os.File
}

func (n *node) addr() string { return n.at[0] }
func (n *node) peer() string { return n.at[1] }

// newCluster makes one of so many nodes with two copies of each block.
func newCluster(t testing.TB, net *network, nodes int, builds []string, downAfter string) *cluster {
	return beginCluster(t, net, builds).grow(nodes, downAfter)
}

// beginCluster makes one without nodes yet.
func beginCluster(t testing.TB, net *network, builds []string) *cluster {
	dir, err := os.MkdirTemp("", "apart")
	require.NoError(t, err)
	c := &cluster{t: t, net: net, dir: dir, op: net.host("op"), builds: builds, drives: "1GiB",
		sizes: "store: {io_bytes: 384MiB, block_bytes: 64KiB}\nlimits: {memory_bytes: 384MiB}\n"}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.kill()
			_ = n.log.Close()
			if said, err := os.ReadFile(n.log.Name()); err != nil || bytes.Contains(said, []byte("WARNING: DATA RACE")) {
				t.Errorf("node %s: a data race, by its log: %v", n.name, err)
			}
		}
		if t.Failed() {
			t.Logf("stores, books and logs are kept in %s", dir)
			return
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	c.authority()
	for _, role := range []string{"engine", "nodes", "operator"} {
		require.NoError(t, os.WriteFile(c.token(role), []byte(rand.Text()), 0o600))
	}
	return c
}

// grow gives it its nodes.
func (c *cluster) grow(nodes int, downAfter string) *cluster {
	for i := range nodes {
		name := string(rune('a' + i))
		h := c.net.host(name)
		n := &node{c: c, host: h, name: name, build: c.builds[0], files: []string{"--devices", "2"},
			at: [4]string{net.JoinHostPort(h.ip, clientPort), net.JoinHostPort(h.ip, peerPort), "none", "none"}}
		if c.net == nil {
			n.at = [4]string{freeport.Addr(c.t), freeport.Addr(c.t), freeport.Addr(c.t), "none"}
		}
		if c.prepare != nil {
			c.prepare(i, n)
		}
		c.nodes = append(c.nodes, n)
		var err error
		n.log, err = os.Create(filepath.Join(c.dir, name+".log"))
		require.NoError(c.t, err)
		c.certify(n)
		n.settings()
		place := []string{"--dir", n.dir(), "--addr", n.addr(), "--peer", n.peer(), "--domain", "zone-" + name}
		if i == 0 {
			found := []string{"cluster", "init", "--node", name, "--replicas", "2", "--down-after", downAfter}
			c.must(append(found, place...)...)
		} else {
			c.asks(append([]string{"cluster", "add", name}, place...)...)
		}
		require.NoError(c.t, n.start())
	}
	c.whole()
	return c
}

func (c *cluster) token(role string) string { return filepath.Join(c.dir, role+".token") }

// authority makes what signs the nodes' certificates.
func (c *cluster) authority() {
	var err error
	c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	c.ca = c.sign(&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "peers"}, IsCA: true,
		KeyUsage: x509.KeyUsageCertSign}, c.key, "ca.pem")
}

// certify gives a node a certificate.
func (c *cluster) certify(n *node) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	c.sign(&x509.Certificate{SerialNumber: big.NewInt(int64(len(c.nodes) + 1)), Subject: pkix.Name{CommonName: n.name},
		IPAddresses: []net.IP{net.ParseIP(n.host.ip)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, key, n.name+".pem")
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c.t, err)
	c.write(n.name+".key", "PRIVATE KEY", der)
}

func (c *cluster) sign(what *x509.Certificate, key *ecdsa.PrivateKey, name string) *x509.Certificate {
	what.NotBefore, what.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(100*time.Hour)
	what.BasicConstraintsValid = true
	by := c.ca
	if by == nil {
		by = what
	}
	der, err := x509.CreateCertificate(rand.Reader, what, by, key.Public(), c.key)
	require.NoError(c.t, err)
	c.write(name, "CERTIFICATE", der)
	cert, err := x509.ParseCertificate(der)
	require.NoError(c.t, err)
	return cert
}

func (c *cluster) write(name, kind string, der []byte) {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(c.t, os.WriteFile(filepath.Join(c.dir, name), text, 0o600))
}

func (n *node) dir() string    { return filepath.Join(n.c.dir, n.name) }
func (n *node) config() string { return n.dir() + ".yaml" }

// settings writes the node's file.
func (n *node) settings() {
	d := n.c.dir
	text := fmt.Sprintf(`dir: %[1]s/%[2]s
listen: %[3]s
peers: {cert: %[1]s/%[2]s.pem, key: %[1]s/%[2]s.key, ca: %[1]s/ca.pem, token_file: %[1]s/nodes.token, repair_every: 10s}
credentials:
  - {name: engine, tenant: %[4]s, rights: [read, write], token_file: %[1]s/engine.token}
  - {name: nodes, tenant: "*", rights: [read, write], token_file: %[1]s/nodes.token}
  - {name: operator, tenant: "*", rights: [admin, read], token_file: %[1]s/operator.token}
`, d, n.name, n.addr(), tenant) + n.c.creds + n.c.sizes
	require.NoError(n.c.t, os.WriteFile(n.config(), []byte(text), 0o600))
}

// program is a command of a build of skep, on a host.
func (c *cluster) program(ctx context.Context, h *host, build string, args ...string) *exec.Cmd {
	if build == "" {
		build = os.Args[0]
	}
	line := h.inside(append([]string{build}, args...)...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), self.Env+"=1")
	cmd.SysProcAttr = self.EndWithParent()
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// flags are settings that are given to the command.
func (n *node) flags() []string {
	return []string{"--config", n.config(), "--capacity", n.c.drives, "--dram", "32MiB", "--resp", n.at[3],
		"--http", n.at[2], "--log", "info"}
}

// start starts the node's process.
func (n *node) start() error {
	args := append(append([]string{"serve"}, n.files...), n.flags()...)
	n.cmd = n.c.program(context.Background(), n.host, n.build, args...)
	n.cmd.Env = append(n.cmd.Env, n.more...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	n.ended = ended
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(n.cmd)
	return nil
}

// runs says whether the node has a process.
func (n *node) runs() bool { return n.cmd != nil }

// alive fails where the process ended by itself.
func (n *node) alive() error {
	if n.cmd == nil {
		return nil
	}
	select {
	case err := <-n.ended:
		n.cmd = nil
		return fmt.Errorf("node %s ended by itself: %w; see %s", n.name, errors.Join(err), n.log.Name())
	default:
		return nil
	}
}

// kill ends the process at once.
func (n *node) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		<-n.ended
		n.cmd = nil
	}
}

// stop ends it in order.
func (n *node) stop() error {
	if n.cmd == nil {
		return nil
	}
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-n.ended:
		n.cmd = nil
		return err
	case <-time.After(patience):
		_ = n.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to its log
		<-n.ended
		n.cmd = nil
		return fmt.Errorf("node %s does not stop", n.name)
	}
}

// skep runs a command on the operator's machine.
func (c *cluster) skep(args ...string) (code int, out string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := c.program(ctx, c.op, c.builds[0], args...)
	var text, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		code = -1
	}
	if code != 0 {
		text.Write(errs.Bytes())
	}
	return code, text.String()
}

func (c *cluster) must(args ...string) string {
	c.t.Helper()
	code, out := c.skep(args...)
	require.Zero(c.t, code, "%v: %s", args, out)
	return out
}

// to are the flags by which an operator reaches a node.
func (n *node) to() []string {
	return []string{"--server", "skep://" + n.addr(), "--token-file", n.c.token("operator"), "--json"}
}

// asks runs a command against the first node until it succeeds.
func (c *cluster) asks(args ...string) {
	c.t.Helper()
	var out string
	c.eventually(fmt.Sprint(args), func() bool {
		code, said := c.skep(append(args, c.nodes[0].to()...)...)
		out = said
		return code == 0
	}, &out)
}

// eventually waits until something is so, and else says what was last seen.
func (c *cluster) eventually(what string, is func() bool, last *string) {
	c.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%s: not within %v: %s", what, patience, *last)
		}
	}
}

// whole waits until all nodes serve and are up, and have the copies that they should.
func (c *cluster) whole() {
	c.t.Helper()
	var out string
	for _, n := range c.nodes {
		c.eventually("node "+n.name+" sees all of them well", func() bool {
			if err := n.alive(); err != nil {
				c.t.Fatal(err)
			}
			var code int
			var s consensus.Status
			code, out = c.skep(append([]string{"cluster", "status"}, n.to()...)...)
			if code != 0 || json.Unmarshal([]byte(out), &s) != nil {
				return false
			}
			well := len(s.Nodes) == len(c.nodes) && s.Leader != 0
			for _, x := range s.Nodes {
				well = well && x.State == "up" && x.Reached
			}
			return well
		}, &out)
	}
	c.eventually("nothing is missing", func() bool {
		var code int
		code, out = c.skep(append([]string{"cluster", "repair"}, c.nodes[0].to()...)...)
		return code == 0
	}, &out)
}
