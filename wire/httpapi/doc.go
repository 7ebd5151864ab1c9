// Package httpapi shows a store over HTTP: whether it lives and is ready, its metrics,
// and a JSON API that the console, scripts and people use.
//
//	/healthz              200 while the process answers
//	/readyz               200 while it serves; 503 says why not
//	/metrics              Prometheus
//	/debug/pprof/         Go's profiles, for who has the right admin
//	/api/v1/openapi.json  the API as an OpenAPI 3.1 document, made from the same table as the handlers
//	/api/v1/…             JSON
//	/                     the console (package wire/console)
//
// # Who may
//
// /healthz, /readyz, the OpenAPI document and the console's files are for everybody and
// tell nothing of what is stored. All else needs an identity: "Authorization: Bearer
// TOKEN", HTTP basic authentication with the token as password, or a client
// certificate. A tenant sees its own namespaces, limits and calls; with the right admin,
// everybody's, the store's figures, and what changes it.
//
// # Invariants
//
//   - Each operation of the table states the rights it needs, and they are checked before
//     its handler runs.
//   - What changes something is a POST with a JSON body, and is refused when a browser says
//     that another site's page sent it. Where there are no credentials, requests under
//     another name than this machine's are refused, so that no web page can reach the API
//     by having its own name resolve to us.
//   - Request bodies are at most MaxBody bytes, and calls of the store have a deadline. Few
//     requests are answered at once, of which no tenant has all.
//   - Errors are {"error": {kind, message, field, value, limit}}, with Retry-After where
//     coming back helps.
package httpapi
