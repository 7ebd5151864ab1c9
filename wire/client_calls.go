package wire

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
)

// met notes which server answered: another run of it has other namespaces, perhaps.
func (c *Client) met(hi *frames.Welcome) {
	c.meant.Met(hi)
	c.spacesMu.Lock()
	defer c.spacesMu.Unlock()
	c.tenant, c.rights, c.node = hi.Tenant, auth.Rights(hi.Rights), hi.Node
	if hi.Server != c.server {
		c.server = hi.Server
		clear(c.spaces)
	}
}

// Identity is whose blocks the client's credentials reach, auth.AnyTenant for everybody's, and with which rights, as the
// server said when a connection was made last.
func (c *Client) Identity() (tenant string, rights auth.Rights) {
	c.spacesMu.RLock()
	defer c.spacesMu.RUnlock()
	return c.tenant, c.rights
}

func (c *Client) know(n skep.NamespaceInfo) {
	c.spacesMu.Lock()
	c.spaces[n.ID] = n
	c.spacesMu.Unlock()
}

// namespace is what the server says of a namespace.
func (c *Client) namespace(ctx context.Context, op string, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	c.spacesMu.RLock()
	n, ok := c.spaces[id]
	c.spacesMu.RUnlock()
	if ok {
		return n, nil
	}
	list, err := c.Namespaces(ctx)
	if err != nil {
		return n, err
	}
	for _, n := range list {
		if n.ID == id {
			return n, nil
		}
	}
	return n, &skep.Error{Op: op, Kind: skep.NotFound, Field: "namespace", Value: id}
}

// OpenNamespace implements skep.Namespacer.
func (c *Client) OpenNamespace(ctx context.Context, s skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	if err := s.Validate(); err != nil {
		return skep.NamespaceInfo{}, err
	}
	var m frames.NamespaceInfo
	if err := c.do(ctx, spec{t: frames.TypeOpenNamespace, op: "open namespace", again: true, long: true},
		&frames.NamespaceSpec{NamespaceSpec: s}, nil, &m); err != nil {
		return skep.NamespaceInfo{}, err
	}
	c.know(m.NamespaceInfo)
	return m.NamespaceInfo, nil
}

// Namespaces implements skep.Namespacer. It lists those the credentials reach.
func (c *Client) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	var m frames.NamespaceList
	if err := c.do(ctx, spec{t: frames.TypeNamespaces, op: "namespaces", again: true, long: true}, nil, nil,
		&m); err != nil {
		return nil, err
	}
	out := make([]skep.NamespaceInfo, len(m.List))
	for i, n := range m.List {
		out[i] = n.NamespaceInfo
		c.know(out[i])
	}
	return out, nil
}

// FindNamespace implements skep.Namespacer, among those the credentials reach. It asks the server: another may have
// deleted the namespace since it was heard of.
func (c *Client) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	list, err := c.Namespaces(ctx)
	if i := slices.IndexFunc(list, func(n skep.NamespaceInfo) bool { return n.ID == id }); i >= 0 {
		return list[i], nil
	}
	if err == nil {
		err = &skep.Error{Op: "find namespace", Kind: skep.NotFound, Field: "namespace", Value: id}
	}
	return skep.NamespaceInfo{}, err
}

// NamespacesOf implements skep.Namespacer, among those the credentials reach.
func (c *Client) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	list, err := c.Namespaces(ctx)
	return slices.DeleteFunc(list, func(n skep.NamespaceInfo) bool { return n.Tenant != tenant }), err
}

// Lookup implements skep.PrefixFinder.
func (c *Client) Lookup(ctx context.Context, r *skep.LookupRequest) (out skep.LookupResult, err error) {
	if err := r.Validate(); err != nil {
		return out, err
	}
	asked := time.Now()
	var m frames.LookupResult
	// Again is safe: a lease nobody knows of runs out.
	if err := c.do(ctx, spec{t: frames.TypeLookup, op: "lookup", again: true}, &frames.LookupRequest{LookupRequest: *r},
		nil, &m); err != nil {
		if c.forgiven(ctx, err) {
			return skep.LookupResult{Pays: r.Cost == nil}, nil
		}
		return out, err
	}
	out = skep.LookupResult{Blocks: int(m.Blocks), Tokens: int(m.Tokens), Bytes: m.Bytes, LeaseDenied: m.Denied,
		Estimate: m.Estimate, Pays: m.Pays, Lease: since(&m.Lease, asked)}
	if out.Blocks < 0 || out.Blocks > len(r.Keys) || r.Tiers && len(m.Tiers) != out.Blocks {
		return skep.LookupResult{}, frames.Broken("blocks found", m.Blocks, len(r.Keys))
	}
	out.Tiers = tiersOf(m.Tiers)
	return out, nil
}

func tiersOf(numbers []byte) (out []skep.Tier) {
	for _, t := range numbers {
		out = append(out, skep.Tier(t))
	}
	return out
}

// LookupRuns implements skep.PrefixFinder. A server that does not know the frame makes it Unsupported.
func (c *Client) LookupRuns(ctx context.Context, r *skep.RunsRequest) (out skep.RunsResult, err error) {
	const op = "lookup of runs"
	if err := r.Validate(); err != nil {
		return out, err
	}
	asked := time.Now()
	var m frames.RunsResult
	if err := c.do(ctx, spec{t: frames.TypeLookupRuns, op: op, again: true, needs: frames.FeatureRuns},
		&frames.RunsRequest{RunsRequest: *r}, nil, &m); err != nil {
		if !c.forgiven(ctx, err) {
			return out, err
		}
		for range r.Runs {
			out.Add(&skep.LookupResult{Pays: r.Cost == nil})
		}
		return out, nil
	}
	if len(m.Runs) != len(r.Runs) {
		return out, frames.Broken("runs found", len(m.Runs), len(r.Runs))
	}
	blocks := 0
	for i, x := range m.Runs {
		if x.Blocks < 0 || x.Blocks > len(r.Runs[i]) {
			return out, frames.Broken("blocks found", x.Blocks, len(r.Runs[i]))
		}
		blocks += x.Blocks
	}
	if r.Tiers && len(m.Tiers) != blocks {
		return out, frames.Broken("tiers", len(m.Tiers), blocks)
	}
	return skep.RunsResult{Runs: m.Runs, Lease: since(&m.Lease, asked), LeaseDenied: m.Denied, Tiers: tiersOf(m.Tiers)}, nil
}

// since is the lease as a client may rely on it: from when it asked, not from when the answer came.
func since(l *frames.Lease, asked time.Time) skep.Lease {
	if l.ID == 0 {
		return skep.Lease{}
	}
	return skep.Lease{ID: skep.LeaseID(l.ID), Until: asked.Add(l.Left)}
}

// Renew implements skep.Leaser.
func (c *Client) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	d, err := skep.RenewalOf(d)
	if err != nil {
		return skep.Lease{}, err
	}
	asked := time.Now()
	var m frames.Lease
	if err := c.do(ctx, spec{t: frames.TypeRenew, op: "renew", again: true}, &frames.Lease{ID: uint64(id), Left: d},
		nil, &m); err != nil {
		return skep.Lease{}, err
	}
	return since(&m, asked), nil
}

// Release implements skep.Leaser. A server that is gone has released it.
func (c *Client) Release(ctx context.Context, id skep.LeaseID) error {
	err := c.do(ctx, spec{t: frames.TypeRelease, op: "release", again: true}, &frames.Number{N: uint64(id)}, nil, nil)
	if err != nil && c.forgiven(ctx, err) {
		return nil
	}
	return err
}

// Want implements skep.Putter.
func (c *Client) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	if err := checkKeys("want", r.Keys, r.Salt); err != nil {
		return nil, err
	}
	var m frames.WantResult
	err := c.do(ctx, spec{t: frames.TypeWant, op: "want", again: true}, &frames.WantRequest{WantRequest: *r}, nil, &m)
	switch {
	case err != nil && c.forgiven(ctx, err):
		out := make([]skep.Want, len(r.Keys))
		for i := range out {
			out[i] = skep.Want{Outcome: skep.Declined, Reason: skep.KindOf(err)}
		}
		return out, nil
	case err != nil:
		return nil, err
	case len(m.List) != len(r.Keys):
		return nil, frames.Broken("answers to a want", len(m.List), len(r.Keys))
	}
	return m.List, nil
}

// checkKeys keeps requests that could not be sent from being tried.
func checkKeys(op string, keys []skep.Key, salt skep.Salt) error {
	if len(keys) > skep.MaxChainKeys {
		return skep.Invalidf(op, "keys", len(keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	if len(salt) > skep.MaxSaltSize {
		return skep.Invalidf(op, "salt length in bytes", len(salt), fmt.Sprintf("at most %d", skep.MaxSaltSize))
	}
	return nil
}

// Hint implements skep.Hinter. Without a server nothing is hinted.
func (c *Client) Hint(ctx context.Context, s skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	if err := cmp.Or(checkKeys("hint", keys, s.Salt), h.Validate()); err != nil {
		return 0, err
	}
	var m frames.Number
	err := c.do(ctx, spec{t: frames.TypeHint, op: "hint", again: true},
		&frames.HintRequest{Scope: s, Hint: h, Keys: keys}, nil, &m)
	if err != nil && c.forgiven(ctx, err) {
		return 0, nil
	}
	return int(m.N), err
}

// Delete implements skep.Deleter. It is not sent twice: the second answer would not say
// how many there were.
func (c *Client) Delete(ctx context.Context, s skep.Scope, keys []skep.Key) (int, error) {
	if err := checkKeys("delete", keys, s.Salt); err != nil {
		return 0, err
	}
	var m frames.Number
	err := c.do(ctx, spec{t: frames.TypeDelete, op: "delete", long: true}, &frames.DeleteRequest{Scope: s, Keys: keys},
		nil, &m)
	return int(m.N), err
}

// DeleteNamespace implements skep.Deleter.
func (c *Client) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	err := c.do(ctx, spec{t: frames.TypeDeleteNamespace, op: "delete namespace", long: true},
		&frames.Number{N: uint64(id)}, nil, nil)
	if err == nil {
		c.spacesMu.Lock()
		delete(c.spaces, id)
		c.spacesMu.Unlock()
	}
	return err
}

// Purge implements skep.Deleter.
func (c *Client) Purge(ctx context.Context, p skep.Purge) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return c.do(ctx, spec{t: frames.TypePurge, op: "purge", long: true}, &frames.PurgeRequest{Purge: p}, nil, nil)
}

// Alloc implements skep.Allocator: memory of this process, out of what is shared with
// the server while that lasts.
func (c *Client) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	const op = "alloc"
	if n < 1 {
		return nil, skep.Invalidf(op, "bytes", n, "at least 1")
	}
	if err := c.open(ctx, op); err != nil {
		return nil, err
	}
	if c.shared != nil {
		if m := c.shared.alloc(n); m != nil {
			return m, nil
		}
	}
	return c.memory.Alloc(op, n)
}
