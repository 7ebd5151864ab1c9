// Package s3test is a small server of S3 for tests.
package s3test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server answers the calls of S3 that package s3 makes, of one bucket, without a look at who asks.
type Server struct {
	mu      sync.Mutex
	objects map[string][]byte
	refuse  int
	calls   int
	cut     int
	chunked bool
	bare    bool
	whole   bool
	ranges  bool
	denies  bool
	removes func(key string) (removes bool, answer string)
}

// Bucket is the name of its bucket.
const Bucket = "blocks"

// New makes one without objects.
func New() *Server { return &Server{objects: map[string][]byte{}} }

// Refuse has it answer everything with a status; 0: as it should.
func (f *Server) Refuse(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = status
}

// Calls is how many calls it has had.
func (f *Server) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Cut has the bodies that it sends end after so many bytes; 0: whole.
func (f *Server) Cut(bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = bytes
}

// Chunked has it not say how long an answer with an object is, but where it ends.
func (f *Server) Chunked() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chunked = true
}

// Bare has an answer with an object end where its connection does, as HTTP 1.0's.
func (f *Server) Bare() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bare = true
}

// Whole has it send all of an object, whatever range is asked for.
func (f *Server) Whole() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.whole = true
}

// Ranges has it answer that no object has the range that is asked for.
func (f *Server) Ranges() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ranges = true
}

// Deny has it remove nothing, and say so of each name.
func (f *Server) Deny() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denies = true
}

// Removes has it remove only what removes says, and say that of a name.
func (f *Server) Removes(removes func(key string) (removes bool, answer string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removes = removes
}

// Names are those of its objects, in order.
func (f *Server) Names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.objects))
}

// ServeHTTP implements http.Handler.
func (f *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.refuse != 0 {
		http.Error(w, "no", f.refuse)
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+Bucket), "/")
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPut:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f.objects[name] = plain(r, b)
		w.Header().Set("ETag", `"x"`)
	case r.Method == http.MethodPost && q.Has("delete"):
		var list struct{ Object []struct{ Key string } }
		if err := xml.NewDecoder(r.Body).Decode(&list); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, "<DeleteResult>")
		for _, o := range list.Object {
			if f.denies {
				fmt.Fprintf(w, "<Error><Key>%s</Key><Code>AccessDenied</Code></Error>", o.Key)
				continue
			}
			removes, answer := true, "<Deleted><Key>"+o.Key+"</Key></Deleted>"
			if f.removes != nil {
				removes, answer = f.removes(o.Key)
			}
			if removes {
				delete(f.objects, o.Key)
			}
			fmt.Fprint(w, answer)
		}
		fmt.Fprint(w, "</DeleteResult>")
	case q.Get("list-type") == "2":
		f.list(w, q.Get("prefix"), q.Get("continuation-token"))
	case r.Method == http.MethodGet:
		f.get(w, r, name)
	default:
		http.Error(w, r.Method, http.StatusMethodNotAllowed)
	}
}

// plain takes a body out of the frames that signed bodies come in.
func plain(r *http.Request, b []byte) []byte {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING") {
		return b
	}
	var out []byte
	for {
		head, rest, _ := bytes.Cut(b, []byte("\r\n"))
		size, _, _ := bytes.Cut(head, []byte(";"))
		n, err := strconv.ParseInt(string(size), 16, 64)
		if err != nil || n == 0 {
			return out
		}
		out = append(out, rest[:n]...)
		b = rest[n+2:]
	}
}

func (f *Server) list(w http.ResponseWriter, prefix, after string) {
	type entry struct {
		Key  string
		Size int
	}
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		Contents              []entry
	}
	for _, name := range slices.Sorted(maps.Keys(f.objects)) {
		if !strings.HasPrefix(name, prefix) || name <= after {
			continue
		}
		if len(out.Contents) == 1000 {
			out.IsTruncated, out.NextContinuationToken = true, out.Contents[999].Key
			break
		}
		out.Contents = append(out.Contents, entry{name, len(f.objects[name])})
	}
	_ = xml.NewEncoder(w).Encode(out)
}

func (f *Server) get(w http.ResponseWriter, r *http.Request, name string) {
	b, ok := f.objects[name]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
		return
	}
	w.Header().Set("ETag", `"x"`)
	w.Header().Set("Last-Modified", time.Unix(0, 0).UTC().Format(http.TimeFormat))
	if f.ranges {
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	if f.whole {
		r.Header.Del("Range")
	}
	answer := httptest.NewRecorder()
	http.ServeContent(answer, r, "", time.Time{}, bytes.NewReader(b))
	maps.Copy(w.Header(), answer.Header())
	if f.chunked || f.bare {
		w.Header().Del("Content-Length")
	}
	if f.bare {
		w.Header().Set("Transfer-Encoding", "identity")
	}
	w.WriteHeader(answer.Code)
	b = answer.Body.Bytes()
	if f.cut == 0 {
		_, _ = w.Write(b)
		return
	}
	_, _ = w.Write(b[:min(f.cut, len(b))])
	if f.chunked {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}
