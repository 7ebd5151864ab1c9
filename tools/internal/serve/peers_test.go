package serve

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
)

// A node whose certificate another authority signed is told of at both ends, by its address, and once for many tries.
func TestACertificateOfAnotherAuthorityIsTold(t *testing.T) {
	t.Parallel()
	node := func(p *pki, log *safeLog) *peerTLS {
		p.issue("node")
		out := &peerTLS{log: slog.New(slog.NewTextHandler(log, nil))}
		in := func(name string) string { return filepath.Join(p.dir, name) }
		require.NoError(t, out.load(&PeersConfig{Cert: in("node.pem"), Key: in("node.key"), CA: in("ca.pem")}))
		return out
	}
	// meets has one node dial another, several times, and each read from the other.
	meets := func(from, to *peerTLS) {
		raw, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		l := to.listener(raw)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 1)) // then the other one reads the end
				_ = c.Close()
			}
		}()
		for range 3 {
			if c, err := from.dial(t.Context(), raw.Addr().String()); err == nil {
				_, _ = c.Write([]byte{1})
				_, _ = c.Read(make([]byte, 1))
				_ = c.Close()
			}
		}
		require.NoError(t, l.Close())
		<-done
	}
	var ours, theirs, same safeLog
	p := newPKI(t)
	a, c, b := node(p, &ours), node(newPKI(t), &theirs), node(p, &same)
	meets(b, node(p, &same))
	require.Empty(t, same.String(), "nodes of one authority say nothing")
	meets(a, c)
	for _, log := range []*safeLog{&ours, &theirs} {
		storetest.Eventually(t, "it is said", func() bool { return log.String() != "" })
		require.Equal(t, 1, strings.Count(log.String(), "TLS between nodes failed"), "%s", log.String())
		require.Contains(t, log.String(), "address=127.0.0.1:")
	}
	require.Contains(t, ours.String(), "certificate signed by unknown authority")
	require.Contains(t, theirs.String(), "bad certificate")
}
