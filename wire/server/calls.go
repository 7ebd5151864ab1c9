package server

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"time"
	"unsafe"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
)

// operation is how a server carries out one type of frame.
type operation struct {
	name    string
	need    auth.Rights
	inline  bool // the reader carries it out: it does not wait
	silent  bool // it has no answer
	payload bool // a payload may follow the body
	keys    bool // the body may be as long as Limits.Body; else shortBody
	back    bool // it gives back what is the connection's own, which must need neither memory nor a right
	files   bool // descriptors come with it
	placed  bool // of a cluster's node, it is right by the node's map only
	told    bool // the Store is told by which map
	nodes   bool // who has the right write for every tenant may, too: the nodes of a cluster, which are answered less

	// run carries out an inline operation and answers. An error ends the connection.
	run func(r *request) error
	// prepare reads the request, and its payload, and gives what carries it out. An error
	// is the call's answer, except a cutOff.
	prepare func(r *request) (func(ctx context.Context) (frames.Message, error), error)
}

// shortBody is the longest body of a call that names no keys.
const shortBody = 64 << 10

func (o *operation) most(l *Limits) int {
	if o.keys {
		return l.Body
	}
	return min(shortBody, l.Body)
}

// Needs is what rights a call needs and whether it is answered; false where the type is none of a client's call.
func Needs(typ frames.Type) (need auth.Rights, answered, ok bool) {
	op, ok := operations[typ]
	if !ok {
		return 0, false, false
	}
	return op.need, !op.silent, true
}

// operations is the table of what needs which right. It is filled in init because its
// functions refer to it.
var operations map[frames.Type]*operation

func init() {
	const r, w, a, o = auth.Read, auth.Write, auth.Admin, auth.Operator
	operations = map[frames.Type]*operation{
		frames.TypePing:   {inline: true, run: func(r *request) error { return r.x.reply(&r.h, nil) }},
		frames.TypeCancel: {inline: true, silent: true, run: runCancel},
		frames.TypeGoodbye: {inline: true, silent: true,
			run: func(r *request) error { r.x.polite.Store(true); return io.EOF }},
		frames.TypeOpenNamespace: {need: r, prepare: prepareOpenNamespace},
		frames.TypeNamespaces:    {need: r, prepare: prepareNamespaces},
		frames.TypeLookup:        {need: r, placed: true, inline: true, keys: true, run: answering(lookup)},
		frames.TypeLookupRuns:    {need: r, placed: true, inline: true, keys: true, run: answering(lookupRuns)},
		frames.TypeRenew:         {need: r, inline: true, run: answering(renew)},
		frames.TypeRelease:       {need: r, inline: true, run: answering(release)},
		frames.TypeWant:          {need: w, placed: true, inline: true, keys: true, run: answering(want)},
		frames.TypePut:           {need: w, placed: true, told: true, payload: true, keys: true, prepare: preparePut},
		frames.TypePutEach:       {need: w, placed: true, told: true, payload: true, keys: true, prepare: preparePut},
		frames.TypeBegin:         {need: w, placed: true, prepare: prepareBegin},
		frames.TypeWrite:         {need: w, payload: true, prepare: prepareWrite},
		frames.TypeCommit:        {need: w, prepare: prepareCommit},
		frames.TypeAbort:         {back: true, prepare: prepareAbort},
		frames.TypeFlush: {need: w, placed: true, prepare: simply(func(ctx context.Context,
			r *request) (frames.Message, error) {
			return nil, r.x.s.store.Flush(ctx)
		})},
		frames.TypeRestore:         {need: r, placed: true, inline: true, keys: true, run: runRestore},
		frames.TypeCredit:          {need: r, inline: true, silent: true, run: runCredit},
		frames.TypeClaim:           {need: r, inline: true, run: answering(claim)},
		frames.TypeReprioritise:    {need: r, prepare: prepareReprioritise},
		frames.TypeStop:            {back: true, prepare: prepareStop},
		frames.TypeEnd:             {back: true, prepare: prepareEnd},
		frames.TypeCostedRestore:   {need: r, placed: true, inline: true, keys: true, run: runRestore},
		frames.TypeClaimWhen:       {need: r, inline: true, run: answering(claimWhen)},
		frames.TypeComputed:        {need: r, inline: true, run: answering(computed)},
		frames.TypeBoard:           {need: r, inline: true, run: answering(boardWord)},
		frames.TypeDirection:       {need: r, inline: true, run: answering(directionOf)},
		frames.TypeHint:            {need: w, placed: true, keys: true, prepare: prepareHint},
		frames.TypeDelete:          {need: w, placed: true, told: true, keys: true, prepare: prepareDelete},
		frames.TypePurge:           {need: a, placed: true, told: true, prepare: preparePurge},
		frames.TypeDeleteNamespace: {need: a, placed: true, told: true, prepare: prepareDeleteNamespace},
		frames.TypeStats:           {need: o, nodes: true, prepare: simply(stats)},
		frames.TypeEvents:          {need: r, inline: true, run: runEvents},
		frames.TypeAdmin:           {need: o, keys: true, prepare: prepareAdmin},
		frames.TypeClusterMap:      {need: r, inline: true, run: answering(clusterMap)},
		frames.TypeList:            {need: r, placed: true, prepare: prepareList},
		frames.TypeAttach:          {need: r, files: true, inline: true, run: answering(attach)},
		frames.TypeDetach:          {back: true, prepare: prepareDetach},
		frames.TypeAttachMemory:    {need: r, files: true, inline: true, run: answering(attachMemory)},
		frames.TypeDetachMemory:    {back: true, prepare: prepareDetachMemory},
	}
	for t, o := range operations {
		o.name = t.String()
	}
}

// answering makes run of a function that gives the answer.
func answering(f func(ctx context.Context, r *request) (frames.Message, error)) func(*request) error {
	return func(r *request) error {
		if wait, ok := r.x.who.Limits().Admit(1, 0); !ok {
			return r.x.refused(r, operations[r.h.Type], link.Overloaded("rate of the tenant", wait))
		}
		m, err := f(r.ctx, r)
		return r.answer(m, err)
	}
}

// simply makes prepare of a function with nothing to prepare.
func simply(f func(ctx context.Context, r *request) (frames.Message,
	error)) func(*request) (func(context.Context) (frames.Message, error), error) {
	return func(r *request) (func(context.Context) (frames.Message, error), error) {
		if err := frames.Decode(r.h.Type, r.body, nil); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (frames.Message, error) { return f(ctx, r) }, nil
	}
}

// read decodes the body. What that makes is charged first.
func (r *request) read(m frames.Message) error { return frames.DecodePaid(r.h.Type, r.body, m, r) }

// scoped decodes the body and checks what every call on keys checks: that there are not
// too many, and that the namespace is the caller's.
func (r *request) scoped(m frames.Message, scope *skep.Scope, keys *[]skep.Key) error {
	if err := r.read(m); err != nil {
		return err
	}
	if n, most := len(*keys), r.x.s.opt.Limits.Keys; n > most {
		return skep.Invalidf(r.h.Type.String(), "keys", n, most)
	}
	return r.reach(scope.Namespace)
}

func (r *request) reach(id skep.NamespaceID) error {
	return r.x.s.spaces.reach(r.x.ctx, r.h.Type.String(), r.x.who, id)
}

func runCancel(r *request) error {
	var m frames.Number
	if err := r.read(&m); err != nil {
		return err
	}
	r.x.mu.Lock()
	cancel := r.x.calls[m.N]
	r.x.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return nil
}

func prepareOpenNamespace(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.NamespaceSpec
	if err := r.read(&m); err != nil {
		return nil, err
	}
	x := r.x
	if m.Tenant != "" && !x.who.Reaches(m.Tenant) {
		return nil, &skep.Error{Op: "open namespace", Kind: skep.Denied, Field: "tenant", Value: m.Tenant, Limit: x.who.Tenant}
	}
	return func(ctx context.Context) (frames.Message, error) {
		if x.who.Rights&auth.Write == 0 {
			// Who may only read finds what is there.
			list, err := x.s.store.NamespacesOf(ctx, m.Tenant)
			if err != nil {
				return nil, err
			}
			here := false
			for _, n := range list {
				here = here || n.Name == m.Name
			}
			if !here {
				return nil, link.ErrorOf("open namespace", skep.Denied)
			}
		}
		if of := x.s.opt.Copies; of != nil && m.Copies == 0 {
			m.Copies = of(m.Name)
		}
		info, err := x.s.store.OpenNamespace(ctx, m.NamespaceSpec)
		if err != nil {
			return nil, err
		}
		x.s.spaces.put(info)
		return &frames.NamespaceInfo{NamespaceInfo: info}, nil
	}, nil
}

func prepareNamespaces(r *request) (func(context.Context) (frames.Message, error), error) {
	return simply(func(ctx context.Context, r *request) (frames.Message, error) {
		list, err := r.x.who.Namespaces(ctx, r.x.s.store)
		if err != nil {
			return nil, err
		}
		var each frames.Coder
		n := int64(len(list)) * int64(unsafe.Sizeof(frames.NamespaceInfo{}))
		for _, info := range list {
			each.Body = each.Body[:0]
			(&frames.NamespaceInfo{NamespaceInfo: info}).Walk(&each)
			n += 2 * int64(len(each.Body)) // a frame has up to two lengths while it grows
		}
		if err := r.spendOn("the body and the list", n); err != nil {
			return nil, err
		}
		m := &frames.NamespaceList{List: make([]frames.NamespaceInfo, len(list))}
		for i, n := range list {
			m.List[i] = frames.NamespaceInfo{NamespaceInfo: n}
		}
		return m, nil
	})(r)
}

func lookup(ctx context.Context, r *request) (frames.Message, error) {
	var m frames.LookupRequest
	if err := r.scoped(&m, &m.Scope, &m.Keys); err != nil {
		return nil, err
	}
	res, err := r.x.s.store.Lookup(ctx, &m.LookupRequest)
	if err != nil {
		return nil, err
	}
	return &frames.LookupResult{Blocks: uint64(res.Blocks), Tokens: uint64(res.Tokens), Bytes: res.Bytes,
		Denied: res.LeaseDenied,
		Pays:   res.Pays, Estimate: res.Estimate, Lease: r.x.lend(res.Lease), Tiers: numbers(res.Tiers)}, nil
}

func lookupRuns(ctx context.Context, r *request) (frames.Message, error) {
	var m frames.RunsRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if n, most := m.Keys(), r.x.s.opt.Limits.Keys; n > most {
		return nil, skep.Invalidf(r.h.Type.String(), "keys", n, most)
	}
	if err := r.reach(m.Namespace); err != nil {
		return nil, err
	}
	// What is found, and twice the answer: a frame has up to two lengths while it grows.
	if err := r.Spend(int64(len(m.Runs)) * (int64(unsafe.Sizeof(skep.RunFound{})) +
		2*frames.RunFoundBytes)); err != nil {
		return nil, err
	}
	res, err := r.x.s.store.LookupRuns(ctx, &m.RunsRequest)
	if err != nil {
		return nil, err
	}
	return &frames.RunsResult{Runs: res.Runs, Lease: r.x.lend(res.Lease), Denied: res.LeaseDenied,
		Tiers: numbers(res.Tiers)}, nil
}

// numbers are tiers as they travel.
func numbers(tiers []skep.Tier) (out []byte) {
	for _, t := range tiers {
		out = append(out, byte(t))
	}
	return out
}

// lend remembers a lease as this client's.
func (x *serverConn) lend(l skep.Lease) frames.Lease {
	return *x.s.leases.lend(l, leaseEntry{client: x.client, until: l.Until})
}

// lend remembers whose a lease is, and gives it as it travels.
func (t *leaseTable) lend(l skep.Lease, e leaseEntry) *frames.Lease {
	if l.ID == 0 {
		return &frames.Lease{}
	}
	t.put(l.ID, e)
	return &frames.Lease{ID: uint64(l.ID), Left: l.Until.Sub(skep.Steady())}
}

func renew(ctx context.Context, r *request) (frames.Message, error) {
	var m frames.Lease
	if err := r.read(&m); err != nil {
		return nil, err
	}
	id := skep.LeaseID(m.ID)
	e, ok := r.x.s.leases.owns(r.x.who, id)
	if !ok {
		id = 0 // nobody's: the answer is that of a lease that is over
	}
	l, err := r.x.s.store.Renew(ctx, id, m.Left)
	if err != nil {
		return nil, err
	}
	e.until = l.Until // who renews it takes it from nobody
	return r.x.s.leases.lend(l, e), nil
}

func release(ctx context.Context, r *request) (frames.Message, error) {
	var m frames.Number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	id := skep.LeaseID(m.N)
	if _, ok := r.x.s.leases.owns(r.x.who, id); !ok {
		return nil, nil
	}
	r.x.s.leases.remove(id)
	return nil, r.x.s.store.Release(ctx, id)
}

func want(ctx context.Context, r *request) (frames.Message, error) {
	var m frames.WantRequest
	if err := r.scoped(&m, &m.Scope, &m.Keys); err != nil {
		return nil, err
	}
	list, err := r.x.s.store.Want(ctx, &m.WantRequest)
	return &frames.WantResult{List: list}, err
}

func prepareHint(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.HintRequest
	if err := r.scoped(&m, &m.Scope, &m.Keys); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		n, err := r.x.s.store.Hint(ctx, m.Scope, m.Keys, m.Hint)
		return &frames.Number{N: uint64(n)}, err
	}, nil
}

func prepareDelete(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.DeleteRequest
	if err := r.scoped(&m, &m.Scope, &m.Keys); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		n, err := r.x.s.store.Delete(ctx, m.Scope, m.Keys)
		return &frames.Number{N: uint64(n)}, err
	}, nil
}

func prepareDeleteNamespace(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.Number
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if m.N > math.MaxUint32 {
		return nil, skep.Invalidf("delete namespace", "namespace", m.N, uint32(math.MaxUint32))
	}
	id := skep.NamespaceID(m.N)
	if err := r.reach(id); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) { return nil, r.x.s.store.DeleteNamespace(ctx, id) }, nil
}

func preparePurge(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.PurgeRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	who := r.x.who
	denied := func(field string, value any) error {
		return &skep.Error{Op: "purge", Kind: skep.Denied, Field: field, Value: value}
	}
	switch {
	case m.Tenant != "" && !who.Reaches(m.Tenant):
		return nil, denied("tenant", m.Tenant)
	case m.Model != "" && who.Tenant != auth.AnyTenant: // of all tenants
		return nil, denied("model", m.Model)
	case m.Namespace != 0:
		if err := r.reach(m.Namespace); err != nil {
			return nil, err
		}
	case m.Salt != nil:
		if err := r.reach(m.Salt.Namespace); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) (frames.Message, error) { return nil, r.x.s.store.Purge(ctx, m.Purge) }, nil
}

func stats(ctx context.Context, r *request) (frames.Message, error) {
	st, err := r.x.s.store.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if f := r.x.s.opt.Idle; f != nil {
		st.Idle = f()
	}
	var told any = &st
	if r.x.who.Rights&auth.Operator == 0 {
		told = &nodeStats{st.Opened, st.State, st.CapacityBytes, st.DeviceBytes, st.FreeGroups, st.Groups, st.Evicted,
			st.Idle}
	}
	b, err := json.Marshal(told)
	return &frames.Document{Bytes: b}, err
}

// nodeStats is what another node is told: whether the Store was opened anew, whether it has room to spare, and whether
// clients have left.
type nodeStats struct {
	Opened        time.Time `json:"opened"`
	State         string    `json:"state"`
	CapacityBytes int64     `json:"capacity_bytes"`
	DeviceBytes   int64     `json:"device_bytes"`
	FreeGroups    int       `json:"free_groups"`
	Groups        int       `json:"groups"`
	Evicted       int64     `json:"evicted"`
	Idle          bool      `json:"idle"`
}

func clusterMap(_ context.Context, r *request) (frames.Message, error) {
	if err := r.read(nil); err != nil {
		return nil, err
	}
	m := r.x.s.cluster.Load()
	if m == nil {
		return nil, &skep.Error{Op: "cluster map", Kind: skep.Unsupported, Field: "server", Value: r.x.s.opt.Name, Limit: "a node of a cluster"}
	}
	return &frames.Document{Bytes: m.text}, nil
}

func prepareAdmin(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.AdminRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	f := r.x.s.opt.Admin
	if f == nil {
		return nil, &skep.Error{Op: "admin", Kind: skep.Unsupported, Field: "name", Value: m.Name}
	}
	return func(ctx context.Context) (frames.Message, error) {
		out, err := f(ctx, r.x.who, m.Name, m.JSON)
		return &frames.Document{Bytes: out}, err
	}, nil
}

func prepareList(r *request) (func(context.Context) (frames.Message, error), error) {
	var m frames.ListRequest
	if err := r.read(&m); err != nil {
		return nil, err
	}
	if err := r.reach(m.Namespace); err != nil {
		return nil, err
	}
	n := int(min(m.N, frames.MostListed))
	if err := r.Spend(3 * int64(n) * skep.KeySize); err != nil { // a frame has up to two lengths while it grows
		return nil, err
	}
	return func(ctx context.Context) (frames.Message, error) {
		var out frames.ListResult
		var err error
		if out.Blocks, err = r.x.s.store.CountBlocks(ctx, m.Namespace); err != nil || n == 0 {
			return &out, err
		}
		out.Keys, out.Next, err = r.x.s.store.ListKeys(ctx, m.Namespace, m.From, n)
		return &out, err
	}, nil
}
