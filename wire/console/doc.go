// Package console is the operator's web page: plain HTML, CSS and JavaScript, embedded
// in the binary, without a build step and without anything from the internet.
//
//	static/index.html   the page: what there is to see
//	static/style.css    light and dark
//	static/app.js       asks /api/v1 every second or few and draws
//
// # Invariants
//
//   - The page has no data of its own: all it shows comes from the HTTP API under the
//     token of whoever looks, who sees what the API lets them see.
//   - The token is kept for the tab (sessionStorage), sent as a header, and never put in a
//     URL, so no other page can make a browser use it.
//   - What comes from the store (paths, tenants, names) is set as text, never as HTML.
//   - Everything can be reached and done with the keyboard, and what charts show is there
//     in words and numbers too.
package console
