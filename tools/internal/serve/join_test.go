package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/freeport"
	"github.com/skepkv/skep/tools/internal/member"
	"github.com/skepkv/skep/wire/auth"
	wireserver "github.com/skepkv/skep/wire/server"
)

// joining is a configuration of a server that is to join by itself, on this machine.
func joining(t *testing.T) *Config {
	c := Default()
	c.Dir, c.Node, c.Unix = t.TempDir(), "b", None
	c.Join.Seeds, c.Join.Addr, c.Join.Peer = []string{"127.0.0.1:1"}, "127.0.0.1:7431", "127.0.0.1:7441"
	require.Empty(t, c.problems())
	return c
}

// What a node is refused to be started with, a server does not join with: nothing of the cluster is changed.
func TestAServerDoesNotJoinWithWhatItsNodeIsRefused(t *testing.T) {
	t.Parallel()
	secret, long := write(t, "token", token), "unix:/"+strings.Repeat("x", 200)
	list := []CredentialConfig{{Name: "engine", Tenant: "t", Rights: []string{"read"}, TokenFile: secret}}
	for want, set := range map[string]func(*Config){
		"join.addr is 10.0.0.9:7420, must be a loopback":   func(c *Config) { c.Join.Addr = "10.0.0.9:7420" },
		"join.addr, port is":                               func(c *Config) { c.Join.Addr = "127.0.0.1:70000" },
		"join.resp is 0.0.0.0:7421, must be a loopback":    func(c *Config) { c.Join.RESP = "0.0.0.0:7421" },
		"join.addr is \"/":                                 func(c *Config) { c.Unix, c.Join.Addr = "", long },
		"peers.listen is 0.0.0.0:7441, must be a loopback": func(c *Config) { c.Peers.Listen = "0.0.0.0:7441" },
		"peers.listen is x, must be HOST:PORT":             func(c *Config) { c.Peers.Listen = "x" },
		"peers.server_ca is ca.pem, must be empty while":   func(c *Config) { c.Peers.ServerCA = "ca.pem" },
		"peers.token_file is empty":                        func(c *Config) { c.Credentials = list },
		"unix is none, must be a path":                     func(c *Config) { c.Join.Addr = "unix:/s" },
	} {
		c := joining(t)
		set(c)
		require.ErrorContains(t, problemsOf(c), want)
	}
	for _, fine := range []func(*Config){
		func(c *Config) { c.Listen, c.Join.Addr = "127.0.0.1:7429", "10.0.0.9:7420" }, // it listens elsewhere
		func(c *Config) { c.RESP, c.Join.RESP = None, "10.0.0.9:7421" },
		func(c *Config) {
			c.Credentials, c.Peers.TokenFile = list, secret
			c.Join.Addr, c.Join.RESP = "10.0.0.9:7420", "0.0.0.0:7421"
		},
	} {
		c := joining(t)
		fine(c)
		require.Empty(t, c.problems())
	}
}

// A server that has become a node is started as one: what its settings do not allow there, it does not open.
func TestAServerThatHasJoinedIsCheckedAsANode(t *testing.T) {
	t.Parallel()
	a := founded(t, freeport.Addr(t))
	start(t, a, Options{Store: memstore.New(memstore.Options{})})
	c := joining(t)
	c.Join.Seeds, c.Join.Addr = []string{"unix:" + a.Unix}, "10.0.0.9:7420"
	dir, err := auth.New(nil, nil, nil)
	require.NoError(t, err)
	s := &server{c: c, dir: dir, log: slog.New(slog.NewTextHandler(new(bytes.Buffer), nil))}
	err = s.become(t.Context())
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "listen is 10.0.0.9:7420, must be a loopback")
	id, _, err := c.member()
	require.NoError(t, err)
	require.Equal(t, "b", id.Name, "it has joined")
}

// The token that the seeds are shown is not for the network to read.
func TestATokenForTheSeedsIsNotForTheNetwork(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("node")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for want, set := range map[bool]func(*Config){
		true: func(c *Config) {},
		false: func(c *Config) {
			c.TLS = TLSConfig{Cert: filepath.Join(p.dir, "node.pem"), Key: filepath.Join(p.dir, "node.key")}
		},
	} {
		c := joining(t)
		c.Join.Seeds, c.Join.TokenFile = []string{"127.0.0.1:1", "192.0.2.1:7420"}, write(t, "token", token)
		set(c)
		var log bytes.Buffer
		s := &server{c: c, log: slog.New(slog.NewTextHandler(&log, nil))}
		require.ErrorIs(t, s.become(ctx), skep.Deadline)
		require.Equal(t, want, strings.Contains(log.String(), "unencrypted"))
	}
}

// The first node of a cluster makes none where something listens at a seed, whatever comes of asking it: what shows a
// certificate that is not known here, hangs, hangs up or cannot say yes now, may be of the cluster. Where nothing
// listens, it makes one.
func TestAFirstNodeMakesNoClusterBesideOneThatLives(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	p.issue("node")
	unknown := newPKI(t).issue("node")
	for name, serve := range map[string]func(context.Context, net.Conn){
		"hangs up": func(context.Context, net.Conn) {},
		"hangs":    func(ctx context.Context, _ net.Conn) { <-ctx.Done() },
		"certificate": func(ctx context.Context, c net.Conn) {
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{unknown}}).HandshakeContext(ctx)
		},
		"no quorum":   nil,
		"nothing now": nil, // the directory has asked one before
		"nothing":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			c := joining(t)
			c.Join.First, c.Join.Wait, c.Join.Replicas = "b", 0, 1
			if name == "certificate" {
				at := func(file string) string { return filepath.Join(p.dir, file) }
				c.TLS, c.Peers.ServerCA = TLSConfig{Cert: at("node.pem"), Key: at("node.key")}, at("ca.pem")
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			c.Join.Seeds = []string{l.Addr().String()}
			var wait sync.WaitGroup
			defer wait.Wait()
			defer cancel()
			defer l.Close()
			switch name {
			case "nothing", "nothing now":
				require.NoError(t, l.Close())
				if name == "nothing" {
					c.Join.Wait = Duration(5 * time.Second) // the least that its settings may say
				} else {
					require.NoError(t, os.Mkdir(member.Dir(c.Dir), 0o700))
					require.NoError(t, os.WriteFile(filepath.Join(member.Dir(c.Dir), "join.json"), []byte(`{}`), 0o600))
				}
			case "no quorum":
				srv, err := wireserver.New(memstore.New(memstore.Options{}), wireserver.Options{Admin: func(
					context.Context, auth.Identity, string, json.RawMessage,
				) (json.RawMessage, error) {
					return nil, &skep.Error{Op: "propose", Kind: skep.Unavailable, Field: "leader"}
				}})
				require.NoError(t, err)
				wait.Go(func() { _ = srv.Serve(ctx, l) })
			default:
				wait.Go(func() {
					for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
						wait.Go(func() {
							serve(ctx, conn)
							conn.Close()
						})
					}
				})
			}
			s := &server{c: c, log: slog.New(slog.NewTextHandler(&hears{"makes no cluster", cancel}, nil))}
			err = s.become(ctx)
			id, _, bad := c.member()
			require.NoError(t, bad)
			if name == "nothing" {
				require.NoError(t, err)
				require.EqualValues(t, 1, id.ID, "it makes the cluster")
				return
			}
			require.ErrorIs(t, err, skep.Deadline)
			require.Nil(t, id)
		})
	}
}

// A node whose answer to being added was lost asks again and is that node, where its directory remembers that it asked.
// A directory that does not, such as one that was lost, is refused; so is one that remembers, once another is served as
// that node, and where the node is elsewhere.
func TestAnAddWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	x := newAgreeing(t)
	b := local(t)
	b.Listen, b.RESP, b.HTTP = None, None, None
	n := clustermap.Node{Name: "b", Addr: "unix:" + b.Unix, Peer: freeport.Addr(t), Weight: 1}
	join := func(dir string, n clustermap.Node, loses bool) error {
		_, err := member.Join(t.Context(), dir, "b", nil, func(ctx context.Context) (member.Added, error) {
			return member.Add(ctx, dir, &n, func(ctx context.Context, call string, in, out any) error {
				err := x.ask(ctx, call, in, out)
				if err == nil && loses && out.(*member.Added).Map != nil {
					err = &skep.Error{Op: call, Kind: skep.Unavailable}
				}
				return err
			})
		})
		return err
	}
	require.ErrorIs(t, join(b.Dir, n, true), skep.Unavailable)
	require.True(t, member.Asked(b.Dir))
	require.ErrorIs(t, join(t.TempDir(), n, false), skep.Conflict, "it did not ask")
	moved, old := t.TempDir(), t.TempDir()
	for _, copied := range []string{moved, old} {
		require.NoError(t, os.CopyFS(copied, os.DirFS(b.Dir)))
	}
	elsewhere := n
	elsewhere.Peer = freeport.Addr(t)
	require.ErrorIs(t, join(moved, elsewhere, false), skep.Conflict, "the node has another address")
	require.NoError(t, join(b.Dir, n, false))
	require.False(t, member.Asked(b.Dir))
	id, m, err := b.member()
	require.NoError(t, err)
	require.EqualValues(t, 2, id.ID)
	require.Len(t, m.Nodes, 2)
	start(t, b, Options{})
	x.serves(x.dial(b))
	require.ErrorIs(t, join(old, n, false), skep.Conflict, "it is served")
	require.False(t, member.Asked(old), "it is refused for good")
}

// A first node that was stopped while it made the cluster goes on with it, where still nothing listens at a seed.
func TestAFirstNodeThatWasCutOffGoesOn(t *testing.T) {
	t.Parallel()
	c := joining(t)
	c.Join.First, c.Join.Wait, c.Join.Replicas = "b", 0, 1
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c.Join.Seeds = []string{l.Addr().String()}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	n := clustermap.Node{Name: c.Node, Addr: c.Join.Addr, Peer: c.Join.Peer, RESP: c.Join.RESP, Weight: c.Join.Weight,
		Domain: c.Join.Domain}
	s := &server{c: c, log: slog.New(slog.NewTextHandler(&hears{"makes no cluster", cancel}, nil))}
	require.Error(t, s.found(cut, n))
	require.True(t, member.Begun(c.Dir))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.log = slog.New(slog.NewTextHandler(&hears{"makes no cluster", cancel}, nil))
	require.ErrorIs(t, s.become(ctx), skep.Deadline, "something listens")
	require.NoError(t, l.Close())
	c.Join.Wait = Duration(5 * time.Second) // the least that its settings may say
	require.NoError(t, s.become(t.Context()))
	id, _, err := c.member()
	require.NoError(t, err)
	require.EqualValues(t, 1, id.ID)
}

// hears is a log that does something once a text is in it.
type hears struct {
	text string
	do   func()
}

func (h *hears) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(h.text)) {
		h.do()
	}
	return len(b), nil
}
