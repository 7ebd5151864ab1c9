package wire

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// What lasts longer than a call ends with its credential, though its client asks for nothing: a stream of events that
// waits, a session that waits for credit, a block that is open, and the connection. Each is told why.
func TestRevokedCredentialEndsWhatLasts(t *testing.T) {
	t.Parallel()
	d := directory(t)
	p := protect(t, d)
	c := rawDial(t, p.addr)
	c.hello(t, tokenA)
	c.send(t, frames.Header{Type: frames.TypeEvents, Call: 1}, &frames.EventsRequest{Credit: 0}, "")
	c.send(t, frames.Header{Type: frames.TypeRestore, Call: 2}, &frames.RestoreRequest{Window: 1,
		Chains: []frames.RestoreChain{{Scope: p.ch.Scope, Keys: p.ch.Keys}}}, "")
	key := skep.KeyOf([]byte("new"))
	c.send(t, frames.Header{Type: frames.TypeBegin, Call: 3},
		&frames.BeginRequest{BeginRequest: skep.BeginRequest{Scope: p.ch.Scope, Key: key, Parent: &p.ch.Keys[0],
			Depth:    1,
			Manifest: skep.Manifest{{Name: "kv", Size: blockSize}}}}, "")
	for begun := 0; begun < 3; {
		h, _, err := c.next()
		require.NoError(t, err)
		require.NotEqual(t, frames.TypeError, h.Type)
		if h.Type != frames.TypeChunks {
			begun++
		}
	}
	require.Equal(t, 1, p.Stats().Streams)
	require.NoError(t, d.Replace([]auth.Credential{{Name: "x", Tenant: "x", Rights: auth.All, TokenSHA256: [32]byte{1}}}, nil))
	told := map[uint64]bool{}
	for {
		h, body, err := c.next()
		if err != nil {
			break // the connection is over
		}
		if h.Type == frames.TypeError {
			require.ErrorIs(t, errorIn(t, body), skep.Denied)
			told[h.Call] = true
		}
	}
	require.Equal(t, map[uint64]bool{1: true, 2: true}, told)
	require.Eventually(t, func() bool { n := p.Stats(); return n.Connections+n.Streams+n.Sessions+int(n.Memory) == 0 }, time.Minute, time.Millisecond)
}

// A credential that runs out does the same.
func TestExpiredCredentialEndsAStream(t *testing.T) {
	t.Parallel()
	const token = "a token for a moment"
	h, err := auth.TokenHash(token)
	require.NoError(t, err)
	expires := time.Now().Add(300 * time.Millisecond)
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: directory(t, auth.Credential{Name: "brief", Tenant: "a", Rights: auth.All, TokenSHA256: h, Expires: expires})})
	o := r.options()
	o.Token, o.Conns, o.Strict = token, 1, true
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	events, err := c.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	_, err = events.Next(t.Context(), make([]skep.Event, 1))
	require.ErrorIs(t, err, skep.Denied)
}

// A client shows what it is given in place of its token from its next call on, and what is under way by the old one
// goes on until it ends or that is taken away.
func TestAClientIsGivenOtherCredentials(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	var shown atomic.Pointer[Credentials]
	shown.Store(&Credentials{Token: tokenReader})
	o := p.options()
	o.Token, o.Conns, o.Silence, o.Strict, o.Credentials = "", 1, 4*time.Second, true, shown.Load
	require.NoError(t, p.a.Close())
	c := p.dial(t, o)
	q := &skep.WantRequest{Scope: p.ch.Scope, Keys: p.ch.Keys}
	_, err := c.Want(t.Context(), q)
	require.ErrorIs(t, err, skep.Denied, "who only reads wants nothing")
	events, err := c.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	shown.Store(&Credentials{Token: tokenA})
	_, err = c.Want(t.Context(), q)
	require.NoError(t, err)
	_, err = c.Delete(t.Context(), p.ch.Scope, p.ch.Keys[3:])
	require.NoError(t, err)
	n, err := events.Next(t.Context(), make([]skep.Event, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n, "the stream that was begun goes on")
	require.Eventually(t, func() bool { return p.Server.Stats().Connections == 2 }, time.Minute, 10*time.Millisecond)
	require.NoError(t, events.Close())
	require.Eventually(t, func() bool { return p.Server.Stats().Connections == 1 }, time.Minute, 10*time.Millisecond)
	_, err = c.Want(t.Context(), q)
	require.NoError(t, err)

	_, err = c.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	shown.Store(&Credentials{Token: tokenWrong})
	_, err = c.Want(t.Context(), q)
	require.ErrorIs(t, err, skep.Denied)
	require.NoError(t, c.Close(), "with the stream, which it does not wait for")

	for _, bad := range []Options{{Token: "t"}, {TLS: &tls.Config{}}, {SharedMemory: 1 << 20}} {
		bad.Addr, bad.Credentials = "unix:x", shown.Load
		_, err = NewClient(bad)
		require.ErrorIs(t, err, skep.Invalid)
	}
}

// What concerns the store as a whole is an operator's, whatever right one tenant has.
func TestWholeStoreIsTheOperators(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: directory(t), Admin: func(context.Context, auth.Identity, string, json.RawMessage) (json.RawMessage, error) {
		asked.Add(1)
		return json.RawMessage("{}"), nil
	}})
	for token, may := range map[string]bool{tokenA: false, operator: true} {
		o := r.options()
		o.Token, o.Strict = token, true
		x, err := r.dial(t, o).conn(t.Context(), 0)
		require.NoError(t, err)
		for typ, m := range map[frames.Type]frames.Message{frames.TypeStats: nil,
			frames.TypeAdmin: &frames.AdminRequest{Name: "jobs", JSON: []byte("{}")}} {
			_, err := x.call(t.Context(), typ, m, nil, &frames.Document{})
			if may {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, skep.Denied)
				require.ErrorContains(t, err, `a credential of tenant "*" with the right admin`)
			}
		}
	}
	require.EqualValues(t, 1, asked.Load())
}

// A node of a cluster is told of another whether it was opened anew, has room, and is idle, and no more: it has the right write
// for every tenant. Who may only read, or write as one tenant, is told nothing.
func TestWhatANodeIsToldOfAnother(t *testing.T) {
	t.Parallel()
	const nodes, looks = "the token of the nodes", "a token that sees all"
	credential := func(token string, rights auth.Rights) auth.Credential {
		h, err := auth.TokenHash(token)
		require.NoError(t, err)
		return auth.Credential{Name: token, Tenant: auth.AnyTenant, Rights: rights, TokenSHA256: h}
	}
	p := protect(t, directory(t, credential(nodes, auth.Read|auth.Write), credential(looks, auth.Read)))
	as := func(token string) *Client {
		o := p.options()
		o.Token, o.Strict = token, true
		return p.dial(t, o)
	}
	whole, err := as(operator).Stats(t.Context())
	require.NoError(t, err)
	require.Positive(t, whole.Blocks)
	told, err := as(nodes).Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, skep.Stats{Opened: whole.Opened, State: whole.State, CapacityBytes: whole.CapacityBytes,
		DeviceBytes: whole.DeviceBytes, FreeGroups: whole.FreeGroups, Groups: whole.Groups, Evicted: whole.Evicted,
		Idle: true}, told)
	for _, token := range []string{looks, tokenWriter} {
		_, err = as(token).Stats(t.Context())
		require.ErrorIs(t, err, skep.Denied, token)
	}
	_, err = as(nodes).Admin(t.Context(), "jobs", json.RawMessage("{}"))
	require.ErrorIs(t, err, skep.Denied)
	require.Zero(t, p.admin)
}

// An operator who renews a tenant's lease does not take it away: the tenant renews and releases it as before.
func TestRenewalByAnOperatorTakesNoLeaseAway(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	op := p.dial(t, p.options())
	_, err := op.Renew(t.Context(), p.lease, time.Minute)
	require.NoError(t, err)
	l, err := p.a.Renew(t.Context(), p.lease, time.Minute)
	require.NoError(t, err)
	require.Equal(t, p.lease, l.ID)
	require.NoError(t, op.Close())
	_, err = p.a.Renew(t.Context(), p.lease, time.Minute)
	require.NoError(t, err, "it goes with the client that took it, not with who renewed it")
	require.NoError(t, p.a.Release(t.Context(), p.lease))
	st, err := p.st.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, st.Leases)
}
