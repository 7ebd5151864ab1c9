package wire

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
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
func everyFrame(ch skep.Chain, lease skep.LeaseID) map[Type]struct {
	m       message
	payload string
	need    auth.Rights
} {
	type row = struct {
		m       message
		payload string
		need    auth.Rights
	}
	sc := ch.Scope
	key := skep.KeyOf([]byte("new"))
	spec := namespaceSpec{skep.NamespaceSpec{Tenant: "a", Name: "made by the test", Shape: skep.Shape{BlockTokens: 1}}}
	return map[Type]row{
		TypeOpenNamespace: {&spec, "", auth.Read | auth.Write},
		TypeNamespaces:    {nil, "", auth.Read},
		TypeLookup:        {&lookupRequest{skep.LookupRequest{Scope: sc, Keys: ch.Keys, Lease: skep.NoLease}}, "", auth.Read},
		TypeRenew:         {&renewOf{uint64(lease), time.Minute}, "", auth.Read},
		TypeRelease:       {&number{uint64(lease)}, "", auth.Read},
		TypeWant:          {&wantRequest{skep.WantRequest{Scope: sc, Keys: ch.Keys}}, "", auth.Write},
		TypePut: {&putRequest{Scope: sc, Parent: &ch.Keys[len(ch.Keys)-1], Depth: len(ch.Keys), Blocks: []putBlock{{Key: key, Parts: []putPart{{Name: "kv", Size: blockSize, Sum: sumXXH3,
			Check: sumOver(sumXXH3, make([]byte, blockSize))}}}}}, string(make([]byte, blockSize)), auth.Write},
		TypeBegin:        {&beginRequest{skep.BeginRequest{Scope: sc, Key: key, Parent: &ch.Keys[0], Depth: 1, Manifest: skep.Manifest{{Name: "kv", Size: blockSize}}}}, "", auth.Write},
		TypeWrite:        {&writeRequest{Writer: 1, Part: "kv", Sum: sumXXH3, Check: sumOver(sumXXH3, []byte("x"))}, "x", auth.Write},
		TypeCommit:       {&commitRequest{Writer: 1}, "", auth.Write},
		TypeAbort:        {&number{1}, "", auth.Write},
		TypeFlush:        {nil, "", auth.Write},
		TypeRestore:      {&restoreRequest{Window: 1 << 20, Chains: []restoreChain{{Scope: sc, Keys: ch.Keys}}}, "", auth.Read},
		TypeClaim:        {&claimRequest{Session: 1}, "", auth.Read},
		TypeReprioritise: {&reprioritiseRequest{Session: 1}, "", auth.Read},
		TypeCostedRestore: {&costedRestoreRequest{[]chainCompute{{Compute: skep.Compute{Cost: skep.RecomputeCost{PerToken: 1}}}},
			restoreRequest{Window: 1 << 20, Chains: []restoreChain{{Scope: sc, Keys: ch.Keys, Direction: skep.TailFirst}}}}, "", auth.Read},
		TypeClaimWhen:       {&claimWhenRequest{claimRequest: claimRequest{Session: 1}}, "", auth.Read},
		TypeComputed:        {&computedRequest{claimRequest: claimRequest{Session: 1}}, "", auth.Read},
		TypeBoard:           {&boardRequest{Session: 1}, "", auth.Read},
		TypeDirection:       {&directionRequest{Session: 1}, "", auth.Read},
		TypeStop:            {&stopRequest{Session: 1, Chain: -1}, "", auth.Read},
		TypeEnd:             {&number{1}, "", auth.Read},
		TypeHint:            {&hintRequest{Scope: sc, Keys: ch.Keys, Hint: skep.Hint{Drop: true}}, "", auth.Write},
		TypeDelete:          {&deleteRequest{sc, ch.Keys}, "", auth.Write},
		TypePurge:           {&purgeRequest{skep.Purge{Namespace: sc.Namespace}}, "", auth.Admin},
		TypeDeleteNamespace: {&number{uint64(sc.Namespace)}, "", auth.Admin},
		TypeStats:           {nil, "", auth.Operator},
		TypeEvents:          {&eventsRequest{Snapshot: true, Credit: 4096}, "", auth.Read},
		TypeAdmin:           {&adminRequest{"test", []byte("{}")}, "", auth.Operator},
		TypeClusterMap:      {nil, "", auth.Read},
		TypeList:            {&listRequest{Namespace: sc.Namespace, N: 4}, "", auth.Read},
		TypeLookupRuns:      {&runsRequest{skep.RunsRequest{Scope: sc, Runs: [][]skep.Key{ch.Keys}}}, "", auth.Read},
		TypeAttach:          {&attachRequest{Size: 1 << 20, Entries: 64}, "", auth.Read},
		TypeDetach:          {&number{1}, "", auth.Read},
		TypeAttachMemory:    {&attachMemoryRequest{Memory: 1, Size: 1 << 20}, "", auth.Read},
		TypeDetachMemory:    {&number{1}, "", auth.Read},
	}
}

// renewOf is lease under a name that says what it is.
type renewOf = lease

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
	p.rig = serve(t, "tcp", newMemstore(storetest.Config{}), ServerOptions{Auth: d, ClusterMap: []byte("{}"),
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
			frames := everyFrame(p.ch, p.lease)
			for typ, f := range frames {
				// The call at once, and behind a hello that is refused.
				for _, greet := range []bool{false, true} {
					c := rawDial(t, p.addr)
					if greet {
						c.send(t, Header{Type: TypeHello}, &hello{Min: 1, Max: 1, Token: token}, "")
					}
					c.send(t, Header{Type: typ, Call: 1}, f.m, f.payload)
					for {
						h, body, err := c.next()
						if err != nil {
							break // closed
						}
						require.Equal(t, TypeError, h.Type, "%v", typ)
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
			var got document
			raw := &rawBody{}
			_, err = x.call(t.Context(), typ, f.m, payloadOf(f.payload), raw)
			got.Bytes = raw.b
			switch typ {
			case TypeOpenNamespace:
				require.ErrorIs(t, err, skep.Denied)
			case TypeNamespaces:
				require.NoError(t, err)
				require.Equal(t, []byte{0, 0, 0, 0}, got.Bytes)
			case TypeRenew:
				require.ErrorIs(t, err, skep.LeaseExpired)
			case TypeStats, TypeAdmin:
				require.ErrorIs(t, err, skep.Denied) // of the store as a whole
			case TypeRelease, TypeAbort, TypeEnd, TypeFlush, TypeEvents, TypeDetach:
				require.NoError(t, err) // of b's own
			case TypeClusterMap:
				require.NoError(t, err) // where nodes are says nothing of tenants
			case TypeWrite, TypeCommit, TypeClaim, TypeClaimWhen, TypeComputed, TypeBoard, TypeDirection, TypeReprioritise, TypeStop:
				require.ErrorIs(t, err, skep.Closed) // a's writers and sessions are a's connection's
			case TypeAttach, TypeAttachMemory, TypeDetachMemory:
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
	frames := everyFrame(skep.Chain{Keys: make([]skep.Key, 1)}, 0)
	for typ, op := range operations {
		if f, ok := frames[typ]; ok {
			require.True(t, f.need == op.need || typ == TypeOpenNamespace, "%v", typ) // that one looks at what is there
		} else {
			require.True(t, op.silent || typ == TypePing, "everyFrame lacks %v", typ)
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
	r := serve(t, "tcp", newMemstore(storetest.Config{}), ServerOptions{Auth: d})
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

func (m *rawBody) walk(c *coder) { m.b = append([]byte(nil), c.take(len(c.b)-c.at)...) }

func errorIn(t *testing.T, body []byte) error {
	t.Helper()
	var e errorBody
	require.NoError(t, decode(TypeError, body, &e))
	return e.err()
}
