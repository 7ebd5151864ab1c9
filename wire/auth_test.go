package wire

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

const (
	tokenA       = "the token of tenant a"
	tokenB       = "the token of tenant b"
	tokenReader  = "a's token that only reads"
	tokenWriter  = "a's token that only writes"
	tokenExpired = "a's token that ran out"
	tokenWrong   = "a token nobody was given"
)

func directory(t testing.TB, extra ...auth.Credential) *auth.Directory {
	t.Helper()
	list := extra
	for _, c := range []struct {
		token, tenant string
		rights        auth.Rights
		expires       time.Time
	}{
		{tokenA, "a", auth.All, time.Time{}}, {tokenB, "b", auth.All, time.Time{}},
		{tokenReader, "a", auth.Read, time.Time{}}, {tokenWriter, "a", auth.Write, time.Time{}},
		{tokenExpired, "a", auth.All, time.Now().Add(-time.Second)}, {operator, auth.AnyTenant, auth.All, time.Time{}},
	} {
		h, err := auth.TokenHash(c.token)
		require.NoError(t, err)
		list = append(list, auth.Credential{Name: c.token[:6], Tenant: c.tenant, Rights: c.rights, TokenSHA256: h, Expires: c.expires})
	}
	d, err := auth.New(list, nil, nil)
	require.NoError(t, err)
	return d
}

// everyFrame is each call of the protocol, aimed at what belongs to tenant a: a good
// request, and the rights it needs.
func everyFrame(ch skep.Chain, lease skep.LeaseID) map[frames.Type]struct {
	m       frames.Message
	payload string
	need    auth.Rights
} {
	type row = struct {
		m       frames.Message
		payload string
		need    auth.Rights
	}
	sc := ch.Scope
	key := skep.KeyOf([]byte("new"))
	spec := frames.NamespaceSpec{NamespaceSpec: skep.NamespaceSpec{Tenant: "a", Name: "made by the test",
		Shape: skep.Shape{BlockTokens: 1}}}
	return map[frames.Type]row{
		frames.TypeOpenNamespace: {&spec, "", auth.Read | auth.Write},
		frames.TypeNamespaces:    {nil, "", auth.Read},
		frames.TypeLookup: {&frames.LookupRequest{LookupRequest: skep.LookupRequest{Scope: sc, Keys: ch.Keys,
			Lease: skep.NoLease}}, "", auth.Read},
		frames.TypeRenew:   {&renewOf{ID: uint64(lease), Left: time.Minute}, "", auth.Read},
		frames.TypeRelease: {&frames.Number{N: uint64(lease)}, "", auth.Read},
		frames.TypeWant: {&frames.WantRequest{WantRequest: skep.WantRequest{Scope: sc, Keys: ch.Keys}}, "",
			auth.Write},
		frames.TypePut: {&frames.PutRequest{Scope: sc, Parent: &ch.Keys[len(ch.Keys)-1], Depth: len(ch.Keys),
			Blocks: []frames.PutBlock{{Key: key, Parts: []frames.PutPart{{Name: "kv", Size: blockSize,
				Sum: frames.SumXXH3,
				Check: link.SumOver(frames.SumXXH3, make([]byte,
					blockSize))}}}}}, string(make([]byte, blockSize)), auth.Write},
		frames.TypePutEach: {&frames.PutRequest{Scope: sc, Blocks: []frames.PutBlock{{Key: key, Parts: []frames.PutPart{{Name: "kv", Size: 1,
			Sum: frames.SumXXH3, Check: link.SumOver(frames.SumXXH3, []byte{0})}}}}}, "\x00", auth.Write},
		frames.TypeBegin: {&frames.BeginRequest{BeginRequest: skep.BeginRequest{Scope: sc, Key: key,
			Parent: &ch.Keys[0], Depth: 1, Manifest: skep.Manifest{{Name: "kv", Size: blockSize}}}}, "", auth.Write},
		frames.TypeWrite: {&frames.WriteRequest{Writer: 1, Part: "kv", Sum: frames.SumXXH3,
			Check: link.SumOver(frames.SumXXH3, []byte("x"))}, "x", auth.Write},
		frames.TypeCommit: {&frames.CommitRequest{Writer: 1}, "", auth.Write},
		frames.TypeAbort:  {&frames.Number{N: 1}, "", 0},
		frames.TypeFlush:  {nil, "", auth.Write},
		frames.TypeRestore: {&frames.RestoreRequest{Window: 1 << 20,
			Chains: []frames.RestoreChain{{Scope: sc, Keys: ch.Keys}}}, "", auth.Read},
		frames.TypeClaim:        {&frames.ClaimRequest{Session: 1}, "", auth.Read},
		frames.TypeReprioritise: {&frames.ReprioritiseRequest{Session: 1}, "", auth.Read},
		frames.TypeCostedRestore: {&frames.CostedRestoreRequest{Compute: []frames.ChainCompute{{Compute: skep.Compute{Cost: skep.RecomputeCost{PerToken: 1}}}},
			RestoreRequest: frames.RestoreRequest{Window: 1 << 20,
				Chains: []frames.RestoreChain{{Scope: sc, Keys: ch.Keys, Direction: skep.TailFirst}}}}, "", auth.Read},
		frames.TypeClaimWhen: {&frames.ClaimWhenRequest{ClaimRequest: frames.ClaimRequest{Session: 1}}, "",
			auth.Read},
		frames.TypeComputed: {&frames.ComputedRequest{ClaimRequest: frames.ClaimRequest{Session: 1}}, "",
			auth.Read},
		frames.TypeBoard:     {&frames.BoardRequest{Session: 1}, "", auth.Read},
		frames.TypeDirection: {&frames.DirectionRequest{Session: 1}, "", auth.Read},
		frames.TypeStop:      {&frames.StopRequest{Session: 1, Chain: -1}, "", 0},
		frames.TypeEnd:       {&frames.Number{N: 1}, "", 0},
		frames.TypeHint: {&frames.HintRequest{Scope: sc, Keys: ch.Keys, Hint: skep.Hint{Drop: true}}, "",
			auth.Write},
		frames.TypeDelete:          {&frames.DeleteRequest{Scope: sc, Keys: ch.Keys}, "", auth.Write},
		frames.TypePurge:           {&frames.PurgeRequest{Purge: skep.Purge{Namespace: sc.Namespace}}, "", auth.Admin},
		frames.TypeDeleteNamespace: {&frames.Number{N: uint64(sc.Namespace)}, "", auth.Admin},
		frames.TypeStats:           {nil, "", auth.Operator},
		frames.TypeEvents:          {&frames.EventsRequest{Snapshot: true, Credit: 4096}, "", auth.Read},
		frames.TypeAdmin:           {&frames.AdminRequest{Name: "test", JSON: []byte("{}")}, "", auth.Operator},
		frames.TypeClusterMap:      {nil, "", auth.Read},
		frames.TypeList:            {&frames.ListRequest{Namespace: sc.Namespace, N: 4}, "", auth.Read},
		frames.TypeLookupRuns: {&frames.RunsRequest{RunsRequest: skep.RunsRequest{Scope: sc,
			Runs: [][]skep.Key{ch.Keys}}}, "", auth.Read},
		frames.TypeAttach:       {&frames.AttachRequest{Size: 1 << 20, Entries: 64}, "", auth.Read},
		frames.TypeDetach:       {&frames.Number{N: 1}, "", 0},
		frames.TypeAttachMemory: {&frames.AttachMemoryRequest{Memory: 1, Size: 1 << 20}, "", auth.Read},
		frames.TypeDetachMemory: {&frames.Number{N: 1}, "", 0},
	}
}

// renewOf is lease under a name that says what it is.
type renewOf = frames.Lease

// protected is a store in which tenant a has a chain under a lease, and how to see that
// nobody touched it.
type protected struct {
	*rig
	a     *Client
	ch    skep.Chain
	lease skep.LeaseID
	admin int
}

func protect(t *testing.T, d *auth.Directory) *protected {
	p := &protected{}
	p.rig = serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: d, ClusterMap: []byte("{}"),
		Idle: func() bool { return true },
		Admin: func(context.Context, auth.Identity, string, json.RawMessage) (json.RawMessage, error) {
			p.admin++
			return json.RawMessage("{}"), nil
		}})
	o := p.options()
	o.Token = tokenA
	p.a = p.dial(t, o)
	p.ch = chainOf(t, p.a, "a", 4)
	found, err := p.a.Lookup(t.Context(), &skep.LookupRequest{Scope: p.ch.Scope, Keys: p.ch.Keys, Lease: time.Minute})
	require.NoError(t, err)
	p.lease = found.Lease.ID
	return p
}

// untouched requires that everything of a's is as it was.
func (p *protected) untouched(t *testing.T, before skep.Stats) {
	t.Helper()
	now, err := p.st.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, standing(before), standing(now))
	list, err := p.st.Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Zero(t, p.admin)
}

func standing(s skep.Stats) string {
	return fmt.Sprint(s.Blocks, s.BlockBytes, s.PutBlocks, s.RestoredBlocks, s.RestoreMisses, s.Lookups, s.Leases, s.LeasedBytes, s.PutExists)
}

// Every call × no, wrong and expired credentials: nothing is done, and the same is said.
func TestNothingBeforeAuthentication(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	before, err := p.st.Stats(t.Context())
	require.NoError(t, err)
	for name, token := range map[string]string{"none": "", "wrong": tokenWrong, "expired": tokenExpired} {
		t.Run(name, func(t *testing.T) {
			_, err := Dial(t.Context(), Options{Addr: p.addr, Token: token, Timeout: time.Minute})
			require.ErrorIs(t, err, skep.Denied)
			require.NotContains(t, err.Error(), "expire", "which of them it is, is nobody's business")
			every := everyFrame(p.ch, p.lease)
			for typ, f := range every {
				// The call at once, and behind a hello that is refused.
				for _, greet := range []bool{false, true} {
					c := rawDial(t, p.addr)
					if greet {
						c.send(t, frames.Header{Type: frames.TypeHello}, &frames.Hello{Min: 1, Max: 1, Token: token},
							"")
					}
					c.send(t, frames.Header{Type: typ, Call: 1}, f.m, f.payload)
					for {
						h, body, err := c.next()
						if err != nil {
							break // closed
						}
						require.Equal(t, frames.TypeError, h.Type, "%v", typ)
						require.ErrorIs(t, errorIn(t, body), skep.Denied)
					}
					c.Close()
				}
			}
			p.untouched(t, before)
		})
	}
}

// Every call × another tenant's credentials: nothing of a's is reached, and what is not
// b's is answered like what is not there.
func TestAnotherTenantReachesNothing(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	o := p.options()
	o.Token = tokenB
	b := p.dial(t, o)
	before, err := p.st.Stats(t.Context())
	require.NoError(t, err)
	for typ, f := range everyFrame(p.ch, p.lease) {
		t.Run(typ.String(), func(t *testing.T) {
			x, err := b.conn(t.Context(), 0)
			require.NoError(t, err)
			var got frames.Document
			raw := &rawBody{}
			_, err = x.call(t.Context(), typ, f.m, payloadOf(f.payload), raw)
			got.Bytes = raw.b
			switch typ {
			case frames.TypeOpenNamespace:
				require.ErrorIs(t, err, skep.Denied)
			case frames.TypeNamespaces:
				require.NoError(t, err)
				require.Equal(t, []byte{0, 0, 0, 0}, got.Bytes)
			case frames.TypeRenew:
				require.ErrorIs(t, err, skep.LeaseExpired)
			case frames.TypeStats, frames.TypeAdmin:
				require.ErrorIs(t, err, skep.Denied) // of the store as a whole
			case frames.TypeRelease, frames.TypeAbort, frames.TypeEnd, frames.TypeFlush, frames.TypeEvents, frames.TypeDetach:
				require.NoError(t, err) // of b's own
			case frames.TypeClusterMap:
				require.NoError(t, err) // where nodes are says nothing of tenants
			case frames.TypeWrite, frames.TypeCommit, frames.TypeClaim, frames.TypeClaimWhen, frames.TypeComputed, frames.TypeBoard, frames.TypeDirection, frames.TypeReprioritise, frames.TypeStop:
				require.ErrorIs(t, err, skep.Closed) // a's writers and sessions are a's connection's
			case frames.TypeAttach, frames.TypeAttachMemory, frames.TypeDetachMemory:
				require.ErrorIs(t, err, skep.Invalid)
			default:
				require.ErrorIs(t, err, skep.NotFound)
				// The answer for a namespace that is nobody's is the same, but for its number.
				other := p.ch
				other.Namespace += 1000
				_, miss := x.call(t.Context(), typ, everyFrame(other, 0)[typ].m, payloadOf(f.payload), nil)
				var e1, e2 *skep.Error
				require.True(t, errors.As(err, &e1) && errors.As(miss, &e2))
				require.Equal(t, fmt.Sprint(other.Namespace), e2.Value)
				e2.Value = e1.Value
				require.Equal(t, e1.Error(), e2.Error())
			}
			p.untouched(t, before)
		})
	}
	for name, purge := range map[string]skep.Purge{"tenant": {Tenant: "a"}, "model": {Model: "m"}, "salt": {Salt: &p.ch.Scope}} {
		err := b.Purge(t.Context(), purge)
		require.True(t, errors.Is(err, skep.Denied) || errors.Is(err, skep.NotFound), "%s: %v", name, err)
	}
	events, err := b.Events(t.Context(), skep.Cursor{}, true)
	require.NoError(t, err)
	_, err = p.a.Delete(t.Context(), p.ch.Scope, p.ch.Keys[3:])
	require.NoError(t, err)
	own := chainOf(t, b, "b", 1)
	seen := make([]skep.Event, 8)
	n, err := events.Next(t.Context(), seen)
	require.NoError(t, err)
	for _, e := range seen[:n] {
		require.Equal(t, own.Namespace, e.Namespace, "b sees nothing of a's events, which came before its own")
	}
	require.NoError(t, events.Close())
}

// A call that is new is in the matrix, with the right it needs.
func TestEveryCallIsInTheMatrix(t *testing.T) {
	t.Parallel()
	every := everyFrame(skep.Chain{Keys: make([]skep.Key, 1)}, 0)
	for typ := range frames.TypeText {
		need, answered, ok := server.Needs(typ)
		if !ok {
			continue
		}
		if f, ok := every[typ]; ok {
			// that one looks at what is there
			require.True(t, f.need == need || typ == frames.TypeOpenNamespace, "%v", typ)
		} else {
			require.True(t, !answered || typ == frames.TypePing, "everyFrame lacks %v", typ)
		}
	}
}

// Every call × rights: who lacks one is denied, and nothing is done.
func TestRights(t *testing.T) {
	t.Parallel()
	p := protect(t, directory(t))
	before, err := p.st.Stats(t.Context())
	require.NoError(t, err)
	for token, has := range map[string]auth.Rights{tokenReader: auth.Read, tokenWriter: auth.Write} {
		o := p.options()
		o.Token = token
		c := p.dial(t, o)
		x, err := c.conn(t.Context(), 0)
		require.NoError(t, err)
		for typ, f := range everyFrame(p.ch, p.lease) {
			if f.need&has == f.need {
				continue
			}
			_, err := x.call(t.Context(), typ, f.m, payloadOf(f.payload), nil)
			require.ErrorIs(t, err, skep.Denied, "%v with %v", typ, has)
		}
	}
	p.untouched(t, before)
	// Who may read finds a namespace that is there.
	o := p.options()
	o.Token = tokenReader
	list, err := p.st.Namespaces(t.Context())
	require.NoError(t, err)
	n, err := p.dial(t, o).OpenNamespace(t.Context(), list[0].NamespaceSpec)
	require.NoError(t, err)
	require.Equal(t, list[0].ID, n.ID)
}

// Credentials that are taken away end what a connection may do.
func TestRemovedCredentialsAreDeniedAtOnce(t *testing.T) {
	t.Parallel()
	d := directory(t)
	p := protect(t, d)
	_, err := p.a.Namespaces(t.Context())
	require.NoError(t, err)
	h, err := auth.TokenHash("a token of somebody else")
	require.NoError(t, err)
	require.NoError(t, d.Replace([]auth.Credential{{Name: "x", Tenant: "x", Rights: auth.All, TokenSHA256: h}}, nil))
	_, err = p.a.Namespaces(t.Context())
	require.ErrorIs(t, err, skep.Denied)
	_, err = p.a.Lookup(t.Context(), &skep.LookupRequest{Scope: p.ch.Scope, Keys: p.ch.Keys})
	require.ErrorIs(t, err, skep.Denied)
}

// Client certificates are credentials: of whom the authority signed and the directory
// names, and nobody else.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	later := time.Now().Add(time.Hour)
	d := directory(t, auth.Credential{Name: "engine", Tenant: "a", Rights: auth.All, CertName: "engine-1"})
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: d})
	_ = r
	conf := &tls.Config{MinVersion: tls.VersionTLS13, ClientCAs: ours.pool, ClientAuth: tls.VerifyClientCertIfGiven,
		Certificates: []tls.Certificate{ours.issue(t, "server", later)}}
	l, addr := listenTLS(t, conf)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, l) }()
	defer func() { cancel(); require.NoError(t, <-done) }()
	dial := func(certs ...tls.Certificate) error {
		c, err := Dial(t.Context(), Options{Addr: addr, Timeout: time.Minute, TLS: &tls.Config{RootCAs: ours.pool, Certificates: certs}})
		if err == nil {
			require.NoError(t, c.Close())
		}
		return err
	}
	require.NoError(t, dial(ours.issue(t, "engine-1", later)))
	require.ErrorIs(t, dial(ours.issue(t, "engine-2", later)), skep.Denied)
	require.ErrorIs(t, dial(), skep.Denied)
	require.Error(t, dial(theirs.issue(t, "engine-1", later)), "another authority")
	require.Error(t, dial(ours.issue(t, "engine-1", time.Now().Add(-time.Hour))), "expired")
}

// rawBody takes an answer as it is.
type rawBody struct{ b []byte }

func (m *rawBody) Walk(c *frames.Coder) { m.b = append([]byte(nil), c.Take(len(c.Body)-c.At)...) }

func errorIn(t *testing.T, body []byte) error {
	t.Helper()
	var e frames.ErrorBody
	require.NoError(t, frames.Decode(frames.TypeError, body, &e))
	return e.Err()
}

// asked counts how often a Store is asked for a namespace.
type asked struct {
	skep.Store
	n atomic.Int64
}

func (a *asked) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	a.n.Add(1)
	return a.Store.FindNamespace(ctx, id)
}

// A namespace of another tenant, which the server remembers, and one that is not there take the same way: the Store is
// asked for both, or the time that an answer takes would tell them apart.
func TestAnotherTenantsNamespaceIsAskedForLikeNone(t *testing.T) {
	t.Parallel()
	st := &asked{Store: newMemstore(storetest.Config{})}
	r := serve(t, "tcp", st, server.Options{Auth: directory(t)})
	o := r.options()
	o.Token = tokenA
	a := r.dial(t, o)
	o.Token = tokenB
	b := r.dial(t, o)
	ch := chainOf(t, a, "a", 1)
	asks := func(c *Client, id skep.NamespaceID, kind error) int64 {
		before := st.n.Load()
		_, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: skep.Scope{Namespace: id}, Keys: ch.Keys,
			Lease: skep.NoLease})
		require.ErrorIs(t, err, kind)
		return st.n.Load() - before
	}
	none := asks(b, ch.Namespace+100, skep.NotFound)
	require.Positive(t, none)
	require.Equal(t, none, asks(b, ch.Namespace, skep.NotFound))
	require.Zero(t, asks(a, ch.Namespace, nil), "its own is remembered")
}
