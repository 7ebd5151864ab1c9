package serve

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// browser starts a headless Chromium that reaches nothing but the server, and collects
// what its console complains of and which hosts it asked.
func browser(t *testing.T) (ctx context.Context, complaints, hosts *[]string) {
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
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1360, 900),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	complaints, hosts = &[]string{}, &[]string{}
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			*complaints = append(*complaints, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError {
				*complaints = append(*complaints, e.Entry.Text+" "+e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			*hosts = append(*hosts, e.Request.URL)
		}
	})
	return ctx, complaints, hosts
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
	ctx, complaints, hosts := browser(t)
	c := local(t)
	c.Devices = "4"
	c.Store.CapacityBytes = 512 << 20
	c.Tenants = map[string]TenantConfig{"default": {Bytes: 300 << 20, RequestsPerSecond: 5000}}
	r := start(t, c, Options{Version: "v0"})
	stop := load(t, r.at("resp"))
	defer stop()
	seconds := 4 * time.Second
	shots := os.Getenv("SKEP_SCREENSHOTS") != ""
	if shots {
		seconds = 75 * time.Second
	}
	text := func(id string) (s string) {
		require.NoError(t, chromedp.Run(ctx, chromedp.Text("#"+id, &s, chromedp.ByQuery)))
		return s
	}
	require.NoError(t, chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable(),
		chromedp.Navigate("http://"+r.at("http")+"/"), chromedp.WaitVisible("#devices .device"), chromedp.Sleep(seconds)))

	assert.Equal(t, "ok", text("state"))
	assert.Contains(t, text("warning"), "No credentials are configured")
	var n int
	require.NoError(t, chromedp.Run(ctx, chromedp.Evaluate(`document.querySelectorAll('#devices .device').length`, &n)))
	assert.Equal(t, 4, n)
	assert.Contains(t, text("t-write"), "MB/s")
	assert.Contains(t, text("lookups"), "not found")
	assert.Contains(t, text("namespaces"), "resp/0/data")
	assert.Contains(t, text("tenants"), "315 MB")
	assert.Contains(t, text("calls"), "resp ")
	assert.Contains(t, text("map-text"), "segments in use on 4 devices")

	// By keyboard alone: the stripe map tells of a segment, and work is started and stopped.
	require.NoError(t, chromedp.Run(ctx, chromedp.Focus("#map"), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowRight)))
	assert.Contains(t, text("map-text"), "device 1, segment 1")
	state := func() string { return text("jobs") }
	require.NoError(t, chromedp.Run(ctx, chromedp.Focus(`[data-key="scrub start"]`), chromedp.KeyEvent(kb.Enter), chromedp.Sleep(300*time.Millisecond)))
	assert.Contains(t, text("jobs-said"), "scrub: start was taken")
	require.NoError(t, chromedp.Run(ctx, chromedp.Focus(`[data-key="scrub pause"]`), chromedp.KeyEvent(kb.Enter), chromedp.Sleep(300*time.Millisecond)))
	assert.Contains(t, state(), "paused")
	pictures(t, ctx, shots)
	require.NoError(t, chromedp.Run(ctx, chromedp.Focus(`[data-key="scrub stop"]`), chromedp.KeyEvent(kb.Enter), chromedp.Sleep(1500*time.Millisecond)))
	assert.Contains(t, state(), "stopped")

	assert.Empty(t, *complaints)
	require.NotEmpty(t, *hosts)
	for _, u := range *hosts {
		assert.True(t, strings.HasPrefix(u, "http://"+r.at("http")+"/") || strings.HasPrefix(u, "data:"), "asks %s", u)
	}
}

// pictures checks that light and dark differ, and keeps them where asked to.
func pictures(t *testing.T, ctx context.Context, keep bool) {
	var ground [2]string
	for i, scheme := range []string{"light", "dark"} {
		var png []byte
		require.NoError(t, chromedp.Run(ctx,
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
			chromedp.Evaluate(`document.activeElement.blur(); drawMap(); window.scrollTo(0, 0); getComputedStyle(document.body).backgroundColor`, &ground[i]),
			chromedp.Sleep(1200*time.Millisecond), chromedp.FullScreenshot(&png, 100)))
		require.Greater(t, len(png), 10_000)
		if keep {
			require.NoError(t, os.WriteFile(filepath.Join("../../../docs/img", "console-"+scheme+".png"), png, 0o644))
		}
	}
	assert.NotEqual(t, ground[0], ground[1])
}

// TestConsoleAsksForAToken: with credentials the page shows nothing until a good one is
// given, and a tenant sees its own.
func TestConsoleAsksForAToken(t *testing.T) {
	ctx, _, _ := browser(t)
	t.Setenv("SKEP_TEST_TOKEN", token)
	c := local(t)
	c.Credentials = []CredentialConfig{{Name: "engine", Tenant: "prod", Rights: []string{"read"}, TokenEnv: "SKEP_TEST_TOKEN"}}
	r := start(t, c, Options{Version: "v0"})
	var said, who string
	var hidden bool
	require.NoError(t, chromedp.Run(ctx, chromedp.Navigate("http://"+r.at("http")+"/"),
		chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", "wrong-token-0123456789"+kb.Enter), chromedp.Sleep(500*time.Millisecond),
		chromedp.Text("#login-why", &said), chromedp.SendKeys("#token", token+kb.Enter), chromedp.Sleep(1500*time.Millisecond),
		chromedp.Text("#server", &who), chromedp.Evaluate(`document.querySelector('[data-needs="segments"]').hidden`, &hidden)))
	assert.Equal(t, "That token is not accepted.", said)
	assert.Contains(t, who, "prod (read)")
	assert.True(t, hidden, "what needs admin is not shown")
}
