package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/watch"
)

const (
	tokenAdmin, tokenReader = "admin-token-0123456789", "reader-token-0123456789"
	tokenWriter, tokenOther = "writer-token-0123456789", "other-token-0123456789"
	tokenOld, tokenOperator = "old-token-0123456789", "operator-token-0123456789"
)

// fixture is an API in front of a memory store with a block of tenant a in it.
type fixture struct {
	t       testing.TB
	handler http.Handler
	store   skep.Store
	space   skep.NamespaceInfo
	key     skep.Key
	ready   error
	unwell  []string
	jobs    *fakeJobs
	log     bytes.Buffer
	asked   Routing
	cluster *ClusterView
	askedOf skep.NamespaceID
}

// route sends everything to the last engine.
func (f *fixture) route(_ context.Context, ns *skep.NamespaceInfo, q *Routing) (RouteView, error) {
	f.asked, f.askedOf = *q, ns.ID
	if len(q.Engines) == 0 {
		return RouteView{}, skep.Invalidf("route", "engines", 0, "1 to 64")
	}
	return RouteView{Engine: q.Engines[len(q.Engines)-1].Name}, nil
}

type fakeJobs struct{ did []string }

func (j *fakeJobs) List(context.Context) ([]Job, error) {
	return []Job{{Name: "scrub", State: "idle", Progress: -1, Actions: []string{"start"}}}, nil
}

func (j *fakeJobs) Do(_ context.Context, job, action string) error {
	if job != "scrub" {
		return &skep.Error{Op: "steer", Kind: skep.NotFound, Field: "job", Value: job}
	}
	j.did = append(j.did, action)
	return nil
}

func credential(t testing.TB, tenant, token string, r auth.Rights) auth.Credential {
	h, err := auth.TokenHash(token)
	require.NoError(t, err)
	return auth.Credential{Name: token[:4], Tenant: tenant, Rights: r, TokenSHA256: h}
}

func newFixture(t testing.TB, open bool) *fixture {
	f := &fixture{t: t, store: memstore.New(memstore.Options{}), jobs: &fakeJobs{},
		cluster: &ClusterView{Node: "a", Nodes: []ClusterNode{}}}
	t.Cleanup(func() { require.NoError(t, f.store.Close()) })
	creds := []auth.Credential{
		credential(t, "a", tokenAdmin, auth.All), credential(t, "a", tokenReader, auth.Read), credential(t, "a", tokenWriter, auth.Write),
		credential(t, "b", tokenOther, auth.Read|auth.Write), credential(t, "a", tokenOld, auth.All),
		credential(t, auth.AnyTenant, tokenOperator, auth.All),
	}
	creds[4].Expires = time.Now().Add(-time.Hour)
	if open {
		creds = nil
	}
	d, err := auth.New(creds, nil, nil)
	require.NoError(t, err)
	ctx := context.Background()
	tenant := "a"
	if open {
		tenant = auth.DefaultTenant
	}
	f.space, err = f.store.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: tenant, Name: "secret-model", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	require.NoError(t, err)
	f.key = skep.KeyOf([]byte("k"))
	f.put()
	w := watch.New()
	w.Record(watch.Call{Protocol: "resp", Name: "SECRETCALL", Tenant: tenant, Start: time.Now(), Duration: time.Second})
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "skep_secret_metric"}))
	f.handler, err = New(Options{
		Store: f.store, Auth: d, Watch: w, Gatherer: reg, Ready: func() error { return f.ready }, Unwell: func() []string { return f.unwell }, Jobs: f.jobs,
		Server: ServerInfo{Version: "v1", Started: time.Now(), Listeners: []Listener{{"http", "127.0.0.1:1", false}}},
		Segments: func(context.Context) (Segments, error) {
			return Segments{Devices: []SegmentDevice{{Path: "secret-device"}}, Groups: []SegmentGroup{{Devices: []int{0}, Segments: []int{0}}}}, nil
		},
		Route: f.route,
		Cluster: func(context.Context) (ClusterView, error) {
			if f.cluster == nil {
				return ClusterView{}, &skep.Error{Op: "cluster", Kind: skep.Unsupported}
			}
			return *f.cluster, nil
		},
		Shares: func() map[string]int64 { return map[string]int64{tenant: 1 << 30} },
		Log:    slog.New(slog.NewTextHandler(&f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	return f
}

func (f *fixture) put() {
	_, err := f.store.Put(context.Background(), &skep.PutRequest{Scope: skep.Scope{Namespace: f.space.ID},
		Blocks: []skep.Block{{Key: f.key, Parts: []skep.Part{{Bytes: []byte("treasure")}}}}})
	require.NoError(f.t, err)
}

// ask sends a request; a body makes it JSON.
func (f *fixture) ask(method, path, token, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w
}

// spare is a namespace that nobody needs.
func (f *fixture) spare() skep.NamespaceID {
	n, err := f.store.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "a", Name: "spare", Shape: f.space.Shape})
	if err != nil {
		panic(err)
	}
	return n.ID
}

// call is an example of an operation.
func (f *fixture) call(op operation) (path, body string) {
	path = strings.NewReplacer("{job}", "scrub", "{action}", "start", "{namespace}", fmt.Sprint(f.spare())).Replace(op.path)
	switch op.id {
	case "lookup", "delete":
		body = fmt.Sprintf(`{"namespace": %d, "keys": ["%s"]}`, f.space.ID, f.key)
	case "route":
		body = fmt.Sprintf(`{"namespace": %d, "keys": ["%s"], "engines": [{"name": "e", "wait_ms": 1.5}]}`, f.space.ID, f.key)
	case "purge":
		body = fmt.Sprintf(`{"namespace": %d}`, f.space.ID)
	case "steer":
		body = "{}"
	}
	return path, body
}

// Every operation answers, and what it answers is what the OpenAPI document says.
func TestTheDocumentDescribesTheHandlers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	w := f.ask("GET", "/api/v1/openapi.json", "", "")
	require.Equal(t, 200, w.Code)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc))
	paths := doc["paths"].(map[string]any)
	n := 0
	for _, op := range operations {
		f.put()
		entry := paths[op.path].(map[string]any)[strings.ToLower(op.method)].(map[string]any)
		path, body := f.call(op)
		schema := func(response string) any {
			return entry["responses"].(map[string]any)[response].(map[string]any)["content"].(map[string]any)["application/json"].(map[string]any)["schema"]
		}
		w := f.ask(op.method, path, tokenOperator, body)
		require.Equal(t, 200, w.Code, "%s: %s", op.id, w.Body)
		var got any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		assert.NoError(t, conforms(doc, schema("200"), got, op.id))
		if body != "" {
			request := entry["requestBody"].(map[string]any)["content"].(map[string]any)["application/json"].(map[string]any)["schema"]
			var sent any
			require.NoError(t, json.Unmarshal([]byte(body), &sent))
			assert.NoError(t, conforms(doc, request, sent, op.id))
		}
		w = f.ask(op.method, path, "", body)
		require.Equal(t, 401, w.Code)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
		assert.NoError(t, conforms(doc, schema("default"), got, op.id))
		n++
	}
	total := 0
	for _, p := range paths {
		total += len(p.(map[string]any))
	}
	assert.Equal(t, n, total, "the document has nothing else")
	assert.Equal(t, []string{"start"}, f.jobs.did)
}

// conforms checks a value against the little of JSON Schema that the document uses.
func conforms(doc map[string]any, schema any, v any, at string) error {
	s := schema.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/schemas/")
		return conforms(doc, doc["components"].(map[string]any)["schemas"].(map[string]any)[name], v, at)
	}
	is := map[string]bool{}
	switch x := v.(type) {
	case nil:
		is["null"] = true
	case bool:
		is["boolean"] = true
	case string:
		is["string"] = true
		if s["format"] == "date-time" {
			if _, err := time.Parse(time.RFC3339, x); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		}
	case float64:
		is["number"] = true
		is["integer"] = x == float64(int64(x))
	case []any:
		is["array"] = true
		for i, e := range x {
			if err := conforms(doc, s["items"], e, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		is["object"] = true
		properties, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := x[name.(string)]; !ok {
				return fmt.Errorf("%s has no %s", at, name)
			}
		}
		for name, e := range x {
			p := properties[name]
			if p == nil {
				p = s["additionalProperties"]
			}
			if p == nil || p == false {
				return fmt.Errorf("%s.%s is not in the document", at, name)
			}
			if err := conforms(doc, p, e, at+"."+name); err != nil {
				return err
			}
		}
	}
	want, ok := s["type"].([]any)
	if !ok {
		want = []any{s["type"]}
	}
	for _, t := range want {
		if is[t.(string)] {
			return nil
		}
	}
	return fmt.Errorf("%s is %v, must be %v", at, v, want)
}

// Every operation and /metrics × no, wrong, expired, too weak and another tenant's token.
func TestAuthMatrix(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	all := append([]operation{{method: "GET", path: "/metrics", id: "metrics", need: auth.Operator}, {method: "GET", path: "/debug/pprof/", id: "pprof", need: auth.Operator}}, operations...)
	still := func(t *testing.T) {
		res, err := f.store.Lookup(context.Background(), &skep.LookupRequest{Scope: skep.Scope{Namespace: f.space.ID}, Keys: []skep.Key{f.key}, Lease: skep.NoLease})
		require.NoError(t, err)
		require.Equal(t, 1, res.Blocks, "nothing was changed")
	}
	for _, op := range all {
		t.Run(op.id, func(t *testing.T) {
			path, body := f.call(op)
			for who, token := range map[string]string{"nobody": "", "a wrong token": "wrong-token-0123456789", "an expired one": tokenOld} {
				w := f.ask(op.method, path, token, body)
				assert.Equal(t, http.StatusUnauthorized, w.Code, who)
				assert.NotContains(t, w.Body.String(), "secret", who)
			}
			for token, r := range map[string]auth.Rights{tokenReader: auth.Read, tokenWriter: auth.Write, tokenAdmin: auth.All} {
				if op.need&^r != 0 {
					assert.Equal(t, http.StatusForbidden, f.ask(op.method, path, token, body).Code, "only %v", r)
				}
			}
			w := f.ask(op.method, path, tokenOther, body)
			assert.NotContains(t, strings.ToLower(w.Body.String()), "secret", "another tenant")
			if op.need != 0 && body != "" {
				assert.NotEqual(t, 200, w.Code)
			}
			still(t)
		})
	}
	assert.NotContains(t, f.log.String(), tokenOperator)
}

// Whether another tenant's namespace exists cannot be told from the answer.
func TestAnotherTenantsNamespaceIsLikeNone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	answer := func(ns int) string {
		w := f.ask("POST", "/api/v1/lookup", tokenOther, fmt.Sprintf(`{"namespace": %d, "keys": ["%s"]}`, ns, f.key))
		return fmt.Sprint(w.Code, strings.ReplaceAll(w.Body.String(), fmt.Sprint(ns), "N"))
	}
	assert.Equal(t, answer(99), answer(int(f.space.ID)))
}

// Purging takes the admin right and reach, as over the binary protocol: another tenant's things
// and a model's, which are everybody's, are not one tenant's to purge.
func TestPurgeReachesOnesOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	other, err := f.store.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "b", Name: "n", Shape: f.space.Shape})
	require.NoError(t, err)
	for body, code := range map[string]int{
		`{"tenant": "b"}`: 403, `{"model": "m"}`: 403, fmt.Sprintf(`{"namespace": %d}`, other.ID): 404, `{"namespace": 99}`: 404,
		`{"tenant": "a"}`: 200, fmt.Sprintf(`{"namespace": %d}`, f.space.ID): 200,
	} {
		assert.Equal(t, code, f.ask("POST", "/api/v1/purge", tokenAdmin, body).Code, body)
		assert.Equal(t, 403, f.ask("POST", "/api/v1/purge", tokenWriter, body).Code, body)
	}
}

// So does deleting a namespace.
func TestDeletingANamespaceReachesOnesOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	other, err := f.store.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "b", Name: "n", Shape: f.space.Shape})
	require.NoError(t, err)
	path := func(id any) string { return fmt.Sprintf("/api/v1/namespaces/%v/delete", id) }
	assert.Equal(t, 403, f.ask("POST", path(f.space.ID), tokenWriter, "").Code)
	for id, code := range map[any]int{other.ID: 404, 99: 404, "x": 400, "99999999999": 400} {
		assert.Equal(t, code, f.ask("POST", path(id), tokenAdmin, "").Code, id)
	}
	assert.Equal(t, 200, f.ask("POST", path(f.space.ID), tokenAdmin, "").Code)
	assert.Equal(t, 404, f.ask("POST", path(f.space.ID), tokenAdmin, "").Code, "it is gone")
	_, err = f.store.FindNamespace(context.Background(), other.ID)
	require.NoError(t, err, "another's stays")
}

func TestOtherSitesPagesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, true)
	body := fmt.Sprintf(`{"namespace": %d}`, f.space.ID)
	assert.Equal(t, 200, f.ask("GET", "/api/v1/stats", "", "").Code, "an open server answers this machine")
	assert.Equal(t, 403, f.ask("GET", "/api/v1/stats", "", "", "Host", "evil.example:7422").Code, "not another name")
	assert.Equal(t, 403, f.ask("POST", "/api/v1/purge", "", body, "Sec-Fetch-Site", "cross-site").Code)
	assert.Equal(t, 403, f.ask("POST", "/api/v1/purge", "", body, "Origin", "https://evil.example").Code)
	assert.Equal(t, 400, f.ask("POST", "/api/v1/purge", "", body, "Content-Type", "text/plain").Code)
	assert.Equal(t, 200, f.ask("POST", "/api/v1/purge", "", body, "Sec-Fetch-Site", "same-origin").Code)
}

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	for name, c := range map[string]struct {
		method, path, body string
		code               int
		field              string
	}{
		"no such path":   {"GET", "/api/v1/nonesuch", "", 404, "path"},
		"not JSON":       {"POST", "/api/v1/purge", "{", 400, "body"},
		"unknown field":  {"POST", "/api/v1/purge", `{"everything": true}`, 400, "body"},
		"nothing named":  {"POST", "/api/v1/purge", `{}`, 400, "fields set"},
		"two values":     {"POST", "/api/v1/purge", `{"model": "x"} {}`, 400, "body"},
		"a large body":   {"POST", "/api/v1/purge", `{"model": "` + strings.Repeat("x", MaxBody) + `"}`, 413, "body, bytes"},
		"n":              {"GET", "/api/v1/calls?n=0", "", 400, "n"},
		"no such job":    {"POST", "/api/v1/jobs/nonesuch/start", "{}", 404, "job"},
		"not a key":      {"POST", "/api/v1/lookup", fmt.Sprintf(`{"namespace": %d, "keys": ["%s"]}`, f.space.ID, strings.Repeat("z", 64)), 400, "key"},
		"a short key":    {"POST", "/api/v1/lookup", fmt.Sprintf(`{"namespace": %d, "keys": ["zz"]}`, f.space.ID), 400, "key, bytes"},
		"no key":         {"POST", "/api/v1/delete", fmt.Sprintf(`{"namespace": %d, "keys": [null]}`, f.space.ID), 400, "key, bytes"},
		"no such method": {"DELETE", "/api/v1/stats", "", 405, "method"},
	} {
		w := f.ask(c.method, c.path, tokenOperator, c.body)
		assert.Equal(t, c.code, w.Code, name)
		var got Failure
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got), name)
		assert.Equal(t, c.field, got.Error.Field, name)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	assert.Equal(t, 200, f.ask("GET", "/healthz", "", "").Code)
	assert.Equal(t, 200, f.ask("GET", "/readyz", "", "").Code)
	f.unwell = []string{"device 1: fenced"}
	assert.Equal(t, "ready\ndevice 1: fenced\n", f.ask("GET", "/readyz", "", "").Body.String())
	f.ready = errors.New("draining")
	w := f.ask("GET", "/readyz", "", "")
	assert.Equal(t, 503, w.Code)
	assert.Equal(t, "draining\n", w.Body.String())
	assert.Contains(t, f.ask("GET", "/metrics", tokenOperator, "").Body.String(), "skep_secret_metric 0")
	r := httptest.NewRequest("GET", "http://localhost/metrics", nil)
	r.SetBasicAuth("prometheus", tokenOperator)
	rec := httptest.NewRecorder()
	f.handler.ServeHTTP(rec, r)
	assert.Equal(t, 200, rec.Code)
	_, _ = io.Copy(io.Discard, rec.Body)
}
