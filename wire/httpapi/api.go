package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/watch"
)

// MaxBody is the largest request body, in bytes.
const MaxBody = 1 << 20

// Options of New.
type Options struct {
	Conns *Conns          // shares connections among tenants; nil: they are not
	Store skep.Store      // required
	Auth  *auth.Directory // required
	Watch *watch.Recorder // may be nil

	// Gatherer is what /metrics shows.
	Gatherer prometheus.Gatherer
	// Ready says why the server should get no traffic; nil: it should. Unwell is what is not
	// well though it serves; nil: nothing is known of.
	Ready  func() error
	Unwell func() []string
	// Server describes it.
	Server ServerInfo
	// Segments tells how the drives' segments stand; nil: the store cannot tell.
	Segments func(ctx context.Context) (Segments, error)
	// Cluster tells how the cluster stands that the server is a node of; nil: the server is of none that agrees on a map.
	Cluster func(ctx context.Context) (ClusterView, error)
	// Jobs is the background work; nil: none.
	Jobs Jobs
	// Route says which engine should take a request of a namespace; nil: this server does not.
	Route func(ctx context.Context, ns *skep.NamespaceInfo, q *Routing) (RouteView, error)
	// Shares are the tenants' stored bytes, as configured, for show.
	Shares func() map[string]int64
	// Console serves what no other path takes; nil: nothing.
	Console http.Handler

	Timeout time.Duration // of calls of the store; 10 s
	Log     *slog.Logger
	Clock   func() time.Time
}

// Jobs is background work that can be steered.
type Jobs interface {
	// List tells how each job stands.
	List(ctx context.Context) ([]Job, error)
	// Do applies one of the job's actions; NotFound when there is no such job, Invalid when
	// it cannot do that now.
	Do(ctx context.Context, job, action string) error
}

// mostUnderWay is how many requests are answered at once: each may be a listing of all that a tenant has, and its client
// may not read it.
const mostUnderWay = 128

// api is the handler.
type api struct {
	o       Options
	under   auth.Pool // requests under way
	mux     *http.ServeMux
	doc     []byte
	methods map[string]map[string]http.Handler // by path, complete before the first request
}

// handle serves one method of a path; GET is HEAD, too. Other methods get 405 and are told which there are:
// left to what takes all other paths, they would be told that there is no such path.
func (a *api) handle(method, path string, h http.Handler) {
	methods := a.methods[path]
	if methods == nil {
		methods = map[string]http.Handler{}
		a.methods[path] = methods
		a.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if h := methods[r.Method]; h != nil {
				h.ServeHTTP(w, r)
				return
			}
			allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
			w.Header().Set("Allow", allow)
			a.fail(w, &wrongMethod{skep.Error{Op: "http", Kind: skep.Invalid, Field: "method", Value: r.Method, Limit: allow}})
		})
	}
	methods[method] = h
	if method == http.MethodGet {
		methods[http.MethodHead] = h
	}
}

// wrongMethod is a method that a path does not have.
type wrongMethod struct{ e skep.Error }

func (e *wrongMethod) Error() string { return e.e.Error() }
func (e *wrongMethod) Unwrap() error { return &e.e }

// New makes the handler.
func New(o Options) (http.Handler, error) {
	if o.Store == nil || o.Auth == nil {
		return nil, skep.Invalidf("http", "store and auth", "nil", "set")
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Gatherer == nil {
		o.Gatherer = prometheus.NewRegistry()
	}
	a := &api{o: o, mux: http.NewServeMux(), methods: map[string]map[string]http.Handler{}, under: auth.Pool{Limit: mostUnderWay}}
	doc, err := document(operations)
	if err != nil {
		return nil, err
	}
	a.doc = doc
	a.handle("GET", "/healthz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }))
	a.handle("GET", "/readyz", http.HandlerFunc(a.ready))
	a.handle("GET", "/api/v1/openapi.json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(a.doc)
	}))
	metrics := promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{})
	a.handle("GET", "/metrics", a.guard(auth.Operator, "metrics", func(w http.ResponseWriter, r *http.Request, _ auth.Identity) (any, error) {
		metrics.ServeHTTP(w, r)
		return nil, nil
	}))
	for path, h := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		a.handle("GET", "/debug/pprof/"+path, a.guardFor(longestProfile, auth.Operator, "pprof", func(w http.ResponseWriter, r *http.Request, _ auth.Identity) (any, error) {
			h(w, r)
			return nil, nil
		}))
	}
	for _, op := range operations {
		a.handle(op.method, op.path, a.guard(op.need, op.id, func(w http.ResponseWriter, r *http.Request, id auth.Identity) (any, error) {
			return op.do(a, r, id)
		}))
	}
	a.mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, &skep.Error{Op: "http", Kind: skep.NotFound, Field: "path", Value: r.URL.Path})
	})
	if o.Console != nil {
		a.mux.Handle("/", o.Console)
	}
	return a.secured(http.NewCrossOriginProtection().Handler(a.mux)), nil
}

// secured adds what every answer has, and keeps other names out of an open server.
func (a *api) secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if !a.o.Conns.meet(r) {
			h.Set("Connection", "close")
		}
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		if strings.HasPrefix(r.URL.Path, "/api/") {
			h.Set("Cache-Control", "no-store")
		}
		if a.o.Auth.Open() && !local(r.Host) {
			a.fail(w, auth.ErrForbidden)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		next.ServeHTTP(w, r)
	})
}

func local(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (a *api) ready(w http.ResponseWriter, _ *http.Request) {
	if a.o.Ready != nil {
		if err := a.o.Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
	}
	fmt.Fprintln(w, "ready")
	if a.o.Unwell != nil {
		for _, line := range a.o.Unwell() {
			fmt.Fprintln(w, line)
		}
	}
}

// longestProfile is how long a profile or a trace may be taken: there is one of each in a process.
const longestProfile = 10 * time.Minute

// doing is what is done for who may have it done.
type doing = func(http.ResponseWriter, *http.Request, auth.Identity) (any, error)

// guard checks who asks and what they may before do runs, and writes its result.
func (a *api) guard(need auth.Rights, name string, do doing) http.Handler {
	return a.guardFor(a.o.Timeout, need, name, do)
}

// guardFor is guard of what may take so long.
func (a *api) guardFor(most time.Duration, need auth.Rights, name string, do doing) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := a.o.Clock()
		outcome, tenant := watch.OK, ""
		defer func() {
			a.o.Watch.Record(watch.Call{Protocol: "http", Name: name, Tenant: tenant, Outcome: outcome, Start: start, Duration: a.o.Clock().Sub(start)})
		}()
		id, err := a.identify(r)
		if err == nil {
			tenant = id.Tenant
			if err = a.o.Conns.enter(r, id.Limits()); err != nil {
				w.Header().Set("Connection", "close")
			} else {
				w.Header().Del("Connection")
			}
		}
		if err == nil {
			err = id.Check(a.o.Clock(), need)
		}
		if err == nil {
			if wait, ok := id.Limits().Admit(1, 0); !ok {
				err = &skep.Error{Op: "http", Kind: skep.Overloaded, Field: "tenant's requests", RetryAfter: wait}
			}
		}
		if err == nil {
			if under := a.under.Of(id.Limits()); under.Take(1) {
				defer under.Give(1)
			} else {
				err = &skep.Error{Op: "http", Kind: skep.Overloaded, Field: "tenant's requests under way", RetryAfter: time.Second}
			}
		}
		var result any
		if err == nil {
			ctx, end := context.WithCancel(r.Context())
			defer end()
			defer id.Until(end)()
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			result, err = do(w, r.WithContext(ctx), id)
		}
		if err != nil {
			outcome = watch.Error
			a.fail(w, err)
			return
		}
		if result != nil {
			w.Header().Set("Content-Type", "application/json")
			_ = encode(w, result)
		}
	})
}

// encode writes a result; of a listing of namespaces, which may be long, one after the other is made.
func encode(w io.Writer, result any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	list, ok := result.([]skep.NamespaceInfo)
	if !ok {
		return e.Encode(result)
	}
	_, err := io.WriteString(w, "[")
	for i := 0; i < len(list) && err == nil; i++ {
		if i > 0 {
			_, err = io.WriteString(w, ",")
		}
		if err == nil {
			err = e.Encode(&list[i])
		}
	}
	if err == nil {
		_, err = io.WriteString(w, "]\n")
	}
	return err
}

// identify finds out who asks. With basic authentication the password is the token, and the user's name nothing.
func (a *api) identify(r *http.Request) (auth.Identity, error) {
	p := auth.Presented{Protocol: "http", TLS: r.TLS, Peer: peer(r.RemoteAddr)}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		p.Token = token
	} else if _, password, ok := r.BasicAuth(); ok {
		p.Token = password
	}
	return a.o.Auth.Identify(r.Context(), p)
}

// peer is a request's RemoteAddr.
type peer string

func (p peer) Network() string { return "tcp" }
func (p peer) String() string  { return string(p) }

// Failure is what an error looks like.
type Failure struct {
	Error FailureBody `json:"error"`
}

// FailureBody says what was wrong, as package skep's errors do.
type FailureBody struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
	Value   string `json:"value,omitempty"`
	Limit   string `json:"limit,omitempty"`
}

var statusOf = map[skep.Kind]int{
	skep.Invalid: http.StatusBadRequest, skep.NotFound: http.StatusNotFound, skep.Conflict: http.StatusConflict,
	skep.Unsupported: http.StatusNotImplemented, skep.Overloaded: http.StatusTooManyRequests, skep.Denied: http.StatusForbidden,
	skep.Closed: http.StatusServiceUnavailable, skep.Failed: http.StatusServiceUnavailable, skep.ReadOnly: http.StatusConflict,
	skep.Deadline: http.StatusGatewayTimeout, skep.NoMemory: http.StatusServiceUnavailable, skep.Unavailable: http.StatusServiceUnavailable,
}

// fail writes an error.
func (a *api) fail(w http.ResponseWriter, err error) {
	status, ok := statusOf[skep.KindOf(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	body := FailureBody{Kind: skep.KindOf(err).Error(), Message: err.Error()}
	var e *skep.Error
	var large *http.MaxBytesError
	var method *wrongMethod
	if errors.As(err, &method) {
		status = http.StatusMethodNotAllowed
	}
	switch {
	case errors.Is(err, auth.ErrDenied):
		status = http.StatusUnauthorized
		body.Kind = "denied"
		w.Header().Set("WWW-Authenticate", `Bearer realm="skep"`)
	case errors.Is(err, auth.ErrForbidden):
		status = http.StatusForbidden
		body.Kind = "forbidden"
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
		body = FailureBody{Kind: skep.Invalid.Error(), Message: err.Error(), Field: "body, bytes", Limit: strconv.Itoa(MaxBody)}
	case errors.As(err, &e):
		body.Field, body.Value, body.Limit = e.Field, show(e.Value), show(e.Limit)
		if e.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
		}
	}
	if status == http.StatusInternalServerError {
		a.o.Log.Error("http", "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Failure{body})
}

func show(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// decode reads a request's JSON body; what is not in v is an error. Nothing at all is an empty object:
// what that lacks is named then, if it lacks something.
func decode(r *http.Request, v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	if mime, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); mime != "application/json" {
		return skep.Invalidf("http", "Content-Type", mime, "application/json")
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err == io.EOF {
		return nil // sent in chunks, and none came
	} else if err != nil {
		var large *http.MaxBytesError
		var said *skep.Error
		if errors.As(err, &large) || errors.As(err, &said) {
			return err
		}
		return &skep.Error{Op: "http", Kind: skep.Invalid, Field: "body", Err: err}
	}
	if d.More() {
		return skep.Invalidf("http", "body", "several values", "one")
	}
	return nil
}
