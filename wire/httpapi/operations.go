package httpapi

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/watch"
)

// operation is one entry of the API: the handler is made of it, and the document.
type operation struct {
	method, path, id string
	need             auth.Rights
	doc              string
	query            map[string]string // parameter: what it is
	body, result     any               // zero values of the types; nil: none
	do               func(a *api, r *http.Request, id auth.Identity) (any, error)
}

var operations = []operation{
	{method: "GET", path: "/api/v1/server", id: "server", need: 0, result: ServerView{},
		doc: "The server, and who asks.", do: (*api).server},
	{method: "GET", path: "/api/v1/stats", id: "stats", need: auth.Operator, result: skep.Stats{},
		doc: "What the store did since it was opened, and how it stands.", do: (*api).stats},
	{method: "GET", path: "/api/v1/namespaces", id: "namespaces", need: auth.Read, result: []skep.NamespaceInfo{},
		doc: "Namespaces: the tenant's own, or all for an operator.", do: (*api).namespaces},
	{method: "GET", path: "/api/v1/tenants", id: "tenants", need: auth.Read, result: []TenantView{},
		doc: "Tenants with shares, rates and use: oneself, or all for an operator.", do: (*api).tenants},
	{method: "GET", path: "/api/v1/segments", id: "segments", need: auth.Operator, result: Segments{},
		doc: "The stripe map: what each segment of each device holds.", do: (*api).segments},
	{method: "GET", path: "/api/v1/cluster", id: "cluster", need: auth.Operator, result: ClusterView{},
		doc: "The cluster: its nodes, what each has, and what it sends to others. The server asks all of them.", do: (*api).cluster},
	{method: "GET", path: "/api/v1/calls", id: "calls", need: auth.Read, result: []watch.Call{},
		query: map[string]string{"n": "how many, 1 to 100; 20"},
		doc:   "The slowest calls of the last quarter of an hour, slowest first: the tenant's own, or all for an operator.", do: (*api).calls},
	{method: "GET", path: "/api/v1/jobs", id: "jobs", need: auth.Operator, result: []Job{},
		doc: "Background work.", do: (*api).jobs},
	{method: "POST", path: "/api/v1/jobs/{job}/{action}", id: "steer", need: auth.Operator, body: struct{}{}, result: []Job{},
		doc: "Start, pause, resume or stop background work; answers with how all of it stands then.", do: (*api).steer},
	{method: "POST", path: "/api/v1/lookup", id: "lookup", need: auth.Read, body: LookupBody{}, result: LookupView{},
		doc: "The longest stored prefix of a chain, without a lease.", do: (*api).lookup},
	{method: "POST", path: "/api/v1/route", id: "route", need: auth.Read, body: RouteBody{}, result: RouteView{},
		doc: "Which of several engines a request should go to. It is taken to be sent there.", do: (*api).route},
	{method: "POST", path: "/api/v1/delete", id: "delete", need: auth.Write, body: LookupBody{}, result: Count{},
		doc: "Deletes blocks by key.", do: (*api).delete},
	{method: "POST", path: "/api/v1/purge", id: "purge", need: auth.Admin, body: PurgeBody{}, result: Done{},
		doc: "Makes everything of one tenant, model or namespace invisible at once.", do: (*api).purge},
	{method: "POST", path: "/api/v1/namespaces/{namespace}/delete", id: "delete_namespace", need: auth.Admin, body: struct{}{}, result: Done{},
		doc: "Deletes a namespace by its number: its blocks are purged, and its name may be used again.", do: (*api).deleteNamespace},
}

// ServerInfo describes the server.
type ServerInfo struct {
	Version   string     `json:"version"`
	Started   time.Time  `json:"started"`
	Listeners []Listener `json:"listeners"`
}

// Listener is one place the server listens at.
type Listener struct {
	Protocol string `json:"protocol"` // wire, resp, lockstep, http, zmq or zmq_replay
	Address  string `json:"address"`  // HOST:PORT, or unix: and a path
	TLS      bool   `json:"tls"`      // TLS 1.3
}

// ServerView is the server as whoever asks sees it.
type ServerView struct {
	ServerInfo
	Open    bool     `json:"open"`    // no credentials are configured
	Cluster bool     `json:"cluster"` // it is a node of a cluster whose nodes agree on a map
	Tenant  string   `json:"tenant"`  // of who asks
	Rights  []string `json:"rights"`
}

func (a *api) server(_ *http.Request, id auth.Identity) (any, error) {
	v := ServerView{ServerInfo: a.o.Server, Open: a.o.Auth.Open(), Cluster: a.o.Cluster != nil,
		Tenant: id.Tenant, Rights: id.Rights.Names()}
	if v.Listeners == nil {
		v.Listeners = []Listener{}
	}
	return v, nil
}

func (a *api) stats(r *http.Request, _ auth.Identity) (any, error) {
	return a.o.Store.Stats(r.Context())
}

// sees says whether id may know of a tenant's things.
func sees(id auth.Identity, tenant string) bool {
	return id.Reaches(tenant) || id.Rights&auth.Operator != 0
}

// seen are the namespaces id may know of.
func (a *api) seen(r *http.Request, id auth.Identity) ([]skep.NamespaceInfo, error) {
	if id.Rights&auth.Operator != 0 {
		return a.o.Store.Namespaces(r.Context())
	}
	return id.Namespaces(r.Context(), a.o.Store)
}

func (a *api) namespaces(r *http.Request, id auth.Identity) (any, error) {
	list, err := a.seen(r, id)
	if list == nil {
		list = []skep.NamespaceInfo{}
	}
	return list, err
}

// TenantView is a tenant: what it may, and what it uses. Zero limits do not limit.
type TenantView struct {
	Tenant            string  `json:"tenant"`
	Namespaces        int     `json:"namespaces"`
	Bytes             *int64  `json:"bytes,omitempty"` // it holds, one copy of each block; absent beyond the 64 that hold most
	ShareBytes        int64   `json:"share_bytes"`
	RequestsPerSecond float64 `json:"requests_per_second"`
	BytesPerSecond    float64 `json:"bytes_per_second"`
	MaxConnections    int     `json:"max_connections"`
	Connections       int     `json:"connections"`
	Shed              int64   `json:"shed"` // calls and connections refused by the limits
}

func (a *api) tenants(r *http.Request, id auth.Identity) (any, error) {
	seen, err := a.seen(r, id)
	if err != nil {
		return nil, err
	}
	views := map[string]*TenantView{}
	view := func(name string) *TenantView {
		if views[name] == nil {
			views[name] = &TenantView{Tenant: name}
		}
		return views[name]
	}
	st, err := a.o.Store.Stats(r.Context())
	if err != nil {
		return nil, err
	}
	for _, n := range seen {
		view(n.Tenant).Namespaces++
	}
	for i := range st.Tenants {
		view(st.Tenants[i].Name).Bytes = &st.Tenants[i].Bytes
	}
	for _, u := range a.o.Auth.Usage() {
		v := view(u.Tenant)
		v.RequestsPerSecond, v.BytesPerSecond, v.MaxConnections = u.Limits.RequestsPerSecond, u.Limits.BytesPerSecond, u.Limits.Connections
		v.Connections, v.Shed = u.Connections, u.Shed
	}
	if a.o.Shares != nil {
		for name, n := range a.o.Shares() {
			view(name).ShareBytes = n
		}
	}
	out := []TenantView{}
	for _, v := range views {
		if sees(id, v.Tenant) {
			out = append(out, *v)
		}
	}
	slices.SortFunc(out, func(x, y TenantView) int { return strings.Compare(x.Tenant, y.Tenant) })
	return out, nil
}

// Segments is how the drives' segments stand.
type Segments struct {
	Devices []SegmentDevice `json:"devices"`
	Groups  []SegmentGroup  `json:"groups"`
}

// SegmentDevice is one device's segments.
type SegmentDevice struct {
	Index        int    `json:"index"`
	Path         string `json:"path"`
	State        string `json:"state"`
	Segments     int    `json:"segments"`      // there is room for
	Free         int    `json:"free"`          // in no group
	SegmentBytes int64  `json:"segment_bytes"` //
}

// SegmentGroup is one stripe group: a segment on each of its devices. Bytes are of
// whole pages, all devices of the group together.
type SegmentGroup struct {
	Group         int64   `json:"group"`
	State         string  `json:"state"`    // open, sealed or cleaning
	Devices       []int   `json:"devices"`  // in striping order
	Segments      []int   `json:"segments"` // its segment on each
	Blocks        int64   `json:"blocks"`
	CapacityBytes int64   `json:"capacity_bytes"` // 0 while it is open
	LiveBytes     int64   `json:"live_bytes"`
	HotBytes      int64   `json:"hot_bytes"` // live, and used since they were written here
	Age           float64 `json:"age"`       // since it was sealed, in capacities written
}

func (a *api) segments(r *http.Request, _ auth.Identity) (any, error) {
	if a.o.Segments == nil {
		return nil, &skep.Error{Op: "segments", Kind: skep.Unsupported}
	}
	return a.o.Segments(r.Context())
}

func (a *api) calls(r *http.Request, id auth.Identity) (any, error) {
	n := 20
	if s := r.URL.Query().Get("n"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 || n > 100 {
			return nil, skep.Invalidf("calls", "n", s, "1 to 100")
		}
	}
	tenant := id.Tenant
	if id.Rights&auth.Operator != 0 {
		tenant = ""
	}
	return a.o.Watch.Slowest(a.o.Clock(), n, tenant), nil
}

// Job is background work: how it stands and what can be done with it now.
type Job struct {
	Name     string   `json:"name"`     // background work
	About    string   `json:"about"`    // what it is for
	State    string   `json:"state"`    // idle, running, paused, failed
	Detail   string   `json:"detail"`   // what it is doing, or did last
	Progress float64  `json:"progress"` // 0 to 1; -1: cannot be told
	Actions  []string `json:"actions"`  // of start, pause, resume, stop
}

func (a *api) jobs(r *http.Request, _ auth.Identity) (any, error) {
	if a.o.Jobs == nil {
		return []Job{}, nil
	}
	return a.o.Jobs.List(r.Context())
}

func (a *api) steer(r *http.Request, id auth.Identity) (any, error) {
	var none struct{}
	if err := decode(r, &none); err != nil {
		return nil, err
	}
	job, action := r.PathValue("job"), r.PathValue("action")
	if a.o.Jobs == nil {
		return nil, &skep.Error{Op: "steer", Kind: skep.NotFound, Field: "job", Value: job}
	}
	if err := a.o.Jobs.Do(r.Context(), job, action); err != nil {
		return nil, err
	}
	a.o.Log.Info("background work", "job", job, "action", action, "by", id.Name)
	return a.o.Jobs.List(r.Context())
}

// HexKey is a key as 64 hexadecimal digits. It is read where it stands, and the first that is none
// ends the reading: a body of many short texts makes no list of them.
type HexKey skep.Key

// UnmarshalJSON implements json.Unmarshaler.
func (k *HexKey) UnmarshalJSON(b []byte) error {
	const digits = 2 * skep.KeySize
	if len(b) != digits+2 || b[0] != '"' {
		return skep.Invalidf("http", "key, bytes", max(len(b)-2, 0), fmt.Sprintf("a text of %d hexadecimal digits", digits))
	}
	if _, err := hex.Decode(k[:], b[1:digits+1]); err != nil {
		return skep.Invalidf("http", "key", string(b[1:digits+1]), "hexadecimal digits")
	}
	return nil
}

// LookupBody names blocks of a namespace.
type LookupBody struct {
	Namespace uint32   `json:"namespace"`
	Keys      []HexKey `json:"keys"` // for a lookup a chain, first block first
}

// LookupView is what a lookup found.
type LookupView struct {
	Blocks int      `json:"blocks"` // how many leading keys can be restored now
	Tokens int      `json:"tokens"`
	Bytes  int64    `json:"bytes"`
	Tiers  []string `json:"tiers"` // of each of the blocks
}

// Count is how many blocks there were.
type Count struct {
	Blocks int `json:"blocks"`
}

// Done says that it is done.
type Done struct {
	Done bool `json:"done"`
}

// scoped reads a body that names blocks, and checks that the namespace is the caller's.
// Another tenant's is told apart from none by nobody.
func (a *api) scoped(r *http.Request, id auth.Identity) (skep.Scope, []skep.Key, error) {
	var body LookupBody
	if err := decode(r, &body); err != nil {
		return skep.Scope{}, nil, err
	}
	if _, err := id.Namespace(r.Context(), "http", a.o.Store, skep.NamespaceID(body.Namespace)); err != nil {
		return skep.Scope{}, nil, err
	}
	keys := make([]skep.Key, len(body.Keys))
	for i, k := range body.Keys {
		keys[i] = skep.Key(k)
	}
	return skep.Scope{Namespace: skep.NamespaceID(body.Namespace)}, keys, nil
}

func (a *api) lookup(r *http.Request, id auth.Identity) (any, error) {
	scope, keys, err := a.scoped(r, id)
	if err != nil {
		return nil, err
	}
	res, err := a.o.Store.Lookup(r.Context(), &skep.LookupRequest{Scope: scope, Keys: keys, Lease: skep.NoLease, Tiers: true})
	if err != nil {
		return nil, err
	}
	v := LookupView{Blocks: res.Blocks, Tokens: res.Tokens, Bytes: res.Bytes, Tiers: []string{}}
	for _, t := range res.Tiers {
		v.Tiers = append(v.Tiers, t.String())
	}
	return v, nil
}

func (a *api) delete(r *http.Request, id auth.Identity) (any, error) {
	scope, keys, err := a.scoped(r, id)
	if err != nil {
		return nil, err
	}
	n, err := a.o.Store.Delete(r.Context(), scope, keys)
	return Count{n}, err
}

func (a *api) deleteNamespace(r *http.Request, id auth.Identity) (any, error) {
	var none struct{}
	if err := decode(r, &none); err != nil {
		return nil, err
	}
	text := r.PathValue("namespace")
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, skep.Invalidf("delete namespace", "namespace", text, "a number of 32 bits")
	}
	ns, err := id.Namespace(r.Context(), "delete namespace", a.o.Store, skep.NamespaceID(n))
	if err != nil {
		return nil, err
	}
	a.o.Log.Warn("delete namespace", "namespace", ns.ID, "tenant", ns.Tenant, "name", ns.Name, "by", id.Name)
	return Done{true}, a.o.Store.DeleteNamespace(r.Context(), ns.ID)
}

// PurgeBody names what to purge: exactly one.
type PurgeBody struct {
	Tenant    string `json:"tenant,omitempty"`
	Model     string `json:"model,omitempty"`
	Namespace uint32 `json:"namespace,omitempty"`
}

func (a *api) purge(r *http.Request, id auth.Identity) (any, error) {
	var b PurgeBody
	if err := decode(r, &b); err != nil {
		return nil, err
	}
	p := skep.Purge{Tenant: b.Tenant, Model: b.Model, Namespace: skep.NamespaceID(b.Namespace)}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	switch {
	case p.Tenant != "" && !id.Reaches(p.Tenant):
		return nil, &skep.Error{Op: "purge", Kind: skep.Denied, Field: "tenant", Value: p.Tenant}
	case p.Model != "" && id.Tenant != auth.AnyTenant: // of all tenants
		return nil, &skep.Error{Op: "purge", Kind: skep.Denied, Field: "model", Value: p.Model}
	case p.Namespace != 0:
		if _, err := id.Namespace(r.Context(), "http", a.o.Store, p.Namespace); err != nil {
			return nil, err
		}
	}
	a.o.Log.Warn("purge", "what", fmt.Sprintf("%+v", b), "by", id.Name)
	return Done{true}, a.o.Store.Purge(r.Context(), p)
}
