package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/internal/serve"
)

// seen is what a browser told of, from its own goroutine, while a test reads it.
type seen struct {
	mu         sync.Mutex
	complaints []string // of its console
	urls       []string // that it asked for
}

func (s *seen) take(ev any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		said := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			said += " " + x.Description
		}
		s.complaints = append(s.complaints, said)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			s.complaints = append(s.complaints, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		s.urls = append(s.urls, e.Request.URL)
	}
}

func (s *seen) all() (complaints, urls []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.complaints), slices.Clone(s.urls)
}

// browser starts a headless Chromium that reaches nothing but the server.
func browser(t *testing.T) (ctx context.Context, said *seen) {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Skip("chromium is not installed")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WindowSize(1360, 900),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	said = &seen{}
	require.NoError(t, chromedp.Listen(ctx, said.take))
	return ctx, said
}

// load keeps values coming and going until stop.
func load(t *testing.T, addr string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	rc := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	value := make([]byte, 1<<20)
	rand.Read(value)
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			rc.Set(ctx, fmt.Sprint("k", i%150), value, 0)
			rc.Get(ctx, fmt.Sprint("k", i*7%150))
			rc.Get(ctx, fmt.Sprint("none", i))
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
		rc.Close()
	}
}

// TestConsole looks at the console as an operator does. With SKEP_SCREENSHOTS=1 it
// writes the pictures of docs/img.
func TestConsole(t *testing.T) {
	t.Parallel()
	ctx, said := browser(t)
	c := local(t)
	c.FileDevices = 4
	c.Store.CapacityBytes = 512 << 20
	c.Tenants = map[string]serve.TenantConfig{"default": {Bytes: 300 << 20, RequestsPerSecond: 5000}}
	at := start(t, c)
	stop := load(t, at["resp"])
	defer stop()
	seconds := time.Duration(0)
	shots := os.Getenv("SKEP_SCREENSHOTS") != ""
	if shots {
		seconds = 75 * time.Second // of charts
	}
	says := func(id, what string) { t.Helper(); says(t, ctx, id, what) }
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, runtime.Enable, cdp.Empty{})
	require.NoError(t, err)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("http://"+at["http"]+"/"),
		chromedp.WaitVisible(chromedp.CSS("#devices .device")), chromedp.Sleep(seconds)))

	says("state", "ok")
	says("warning", "No credentials are configured")
	n, err := chromedp.Run(ctx, chromedp.Evaluate[int](`document.querySelectorAll('#devices .device').length`))
	require.NoError(t, err)
	assert.Equal(t, 4, n)
	says("t-blocks-sub", "cap 537 MB, room ")
	says("t-write", "MB/s")
	says("lookups", "not found")
	says("namespaces", "resp/0/data")
	says("tenants", "315 MB")
	says("calls", "resp ")
	says("map-text", "segments in use on 4 devices")

	// By keyboard alone: the stripe map tells of a segment, and work is started and stopped.
	require.NoError(t, chromedp.Do(ctx, chromedp.Focus(chromedp.CSS("#map")), chromedp.KeyEvent(kb.ArrowDown),
		chromedp.KeyEvent(kb.ArrowRight)))
	says("map-text", "device 1, segment 1")
	// The page draws its buttons anew all the time: one that is gone when it is to be pressed is looked
	// for again.
	press := func(key string, patience time.Duration) (err error) {
		for until := time.Now().Add(patience); time.Now().Before(until); {
			soon, cancel := context.WithTimeout(ctx, patience)
			err = chromedp.Do(soon, chromedp.Focus(chromedp.CSS(`[data-key="scrub `+key+`"]`)))
			cancel()
			if err == nil {
				return chromedp.Do(ctx, chromedp.KeyEvent(kb.Enter))
			}
		}
		return err
	}
	for until := time.Now().Add(3 * time.Minute); ; { // on a busy machine it may be done before it is paused
		require.NoError(t, press("start", time.Minute))
		says("jobs-said", "scrub: start was taken")
		if press("pause", 5*time.Second) == nil {
			break
		}
		require.True(t, time.Now().Before(until))
	}
	says("jobs", "paused")
	pictures(t, ctx, shots)
	require.NoError(t, press("stop", time.Minute))
	says("jobs", "stopped")

	complaints, urls := said.all()
	assert.Empty(t, complaints)
	require.NotEmpty(t, urls)
	for _, u := range urls {
		assert.True(t, strings.HasPrefix(u, "http://"+at["http"]+"/") || strings.HasPrefix(u, "data:"), "asks %s", u)
	}
}

// says waits until an element of the page says something.
func says(t *testing.T, ctx context.Context, id, what string) {
	t.Helper()
	storetest.Eventually(t, id+" says "+what, func() bool {
		s, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("#"+id)))
		require.NoError(t, err)
		return strings.Contains(s, what)
	})
}

// pictures checks that light and dark differ, and keeps them where asked to.
func pictures(t *testing.T, ctx context.Context, keep bool) {
	var ground [2]string
	for i, scheme := range []string{"light", "dark"} {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		require.NoError(t, err)
		ground[i], err = chromedp.Run(ctx, chromedp.Evaluate[string](`document.activeElement.blur(); drawMap(); `+
			`window.scrollTo(0, 0); getComputedStyle(document.body).backgroundColor`))
		require.NoError(t, err)
		require.NoError(t, chromedp.Do(ctx, chromedp.Sleep(1200*time.Millisecond)))
		png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
		require.NoError(t, err)
		require.Greater(t, len(png), 10_000)
		if keep {
			require.NoError(t, os.WriteFile(filepath.Join("../../docs/img", "console-"+scheme+".png"), png, 0o644))
		}
	}
	assert.NotEqual(t, ground[0], ground[1])
}

// TestConsoleAsksForAToken: with credentials the page shows nothing until a good one is
// given, and a tenant sees its own.
//
// Alone: the environment is the process's.
func TestConsoleAsksForAToken(t *testing.T) {
	ctx, _ := browser(t)
	t.Setenv("SKEP_TEST_TOKEN", token)
	c := local(t)
	c.Credentials = []serve.CredentialConfig{{Name: "engine", Tenant: "prod", Rights: []string{"read"},
		TokenEnv: "SKEP_TEST_TOKEN"}}
	at := start(t, c)
	field := chromedp.CSS("#token")
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("http://"+at["http"]+"/"),
		chromedp.WaitVisible(field), chromedp.SendKeys(field, "wrong-token-0123456789"+kb.Enter)))
	says(t, ctx, "login-why", "That token is not accepted.")
	require.NoError(t, chromedp.Do(ctx, chromedp.SendKeys(field, token+kb.Enter)))
	says(t, ctx, "server", "prod (read)")
	// The page finds out what it may show, and hides what needs admin.
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](`document.querySelector('[data-needs="segments"]').hidden`,
		chromedp.WithPollingTimeout(time.Minute)))
	require.NoError(t, err)
}
