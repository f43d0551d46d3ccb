package httpapi

import (
	"strings"
	"testing"

	"github.com/felix-go/felix"
)

// valueSession is about cache values. Versions of the model count its writes.
var valueSession = []jsonStep{
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `{"found":false,"expiresAtMillis":"0","version":"0"}`},
	{values + "Put", `{"cache":"c","key":"v","value":"one","ifVersion":"1"}`, 200, "", `{"applied":false,"version":"0"}`},
	{values + "Put", `{"cache":"c","key":"v","value":"one","ifVersion":"0"}`, 200, "", `{"applied":false,"version":"0"}`},
	{values + "Put", `{"cache":"c","key":"v","value":"one","ifAbsent":true}`, 200, "", `{"applied":true,"version":"1"}`},
	{values + "Put", `{"cache":"c","key":"v","value":"two","ifAbsent":true}`, 200, "", `{"applied":false,"version":"1"}`},
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `{"found":true,"value":"one","expiresAtMillis":"0","version":"1"}`},
	{values + "Put", `{"cache":"c","keyBytes":"dg==","valueBytes":"dHdv","ifVersion":"1"}`, 200, "", `{"applied":true,"version":"2"}`},
	{values + "Put", `{"cache":"c","key":"v","value":"three","ifVersion":1}`, 200, "", `{"applied":false,"version":"2"}`},
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `"value":"two"`},
	{values + "Put", `{"cache":"c","key":"v","value":"","ifAbsent":false,"expiresInMillis":500}`, 200, "", `{"applied":true,"version":"3"}`},
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `{"found":true,"value":"","expiresAtMillis":"1000500","version":"3"}`},
	{values + "Put", `{"cache":"c","key":"v","valueBytes":"/wA=","keepExpiry":true}`, 200, "", `{"applied":true,"version":"4"}`},
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `{"found":true,"valueBytes":"/wA=","expiresAtMillis":"1000500","version":"4"}`},
	{values + "Put", `{"cache":"c","key":"v","value":"x","keepExpiry":false}`, 200, "", `"applied":true`},
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `"expiresAtMillis":"0"`},
	{values + "Put", `{"cache":"c","key":"v","value":"12","expiresAtMillis":"2000000"}`, 200, "", `"applied":true`},
	{values + "Get", `{"cache":"c","key":"v"}`, 200, "", `{"found":true,"value":"12","expiresAtMillis":"2000000","version":"6"}`},
	{counter + "Get", `{"cache":"c","key":"v"}`, 200, "", `"found":false`}, // the two are unrelated
	{counter + "Add", `{"cache":"c","key":"v"}`, 200, "", `"value":"1"`},
	{values + "Delete", `{"cache":"c","key":"v","ifVersion":"5"}`, 200, "", `{"deleted":false,"version":"6"}`},
	{values + "Delete", `{"cache":"c","key":"v","ifVersion":"0"}`, 200, "", `{"deleted":false,"version":"6"}`},
	{values + "Delete", `{"cache":"c","key":"v","ifVersion":"6"}`, 200, "", `{"deleted":true,"version":"0"}`},
	{values + "Delete", `{"cache":"c","key":"v"}`, 200, "", `{"deleted":false,"version":"0"}`},
	{values + "Delete", `{"cache":"c","key":"v","ifVersion":"6"}`, 200, "", `{"deleted":false,"version":"0"}`},
	{counter + "Get", `{"cache":"c","key":"v"}`, 200, "", `"value":"1"`},
	{values + "Put", `{"cache":"c","key":"v","value":"again"}`, 200, "", `{"applied":true,"version":"8"}`},

	{values + "Put", `{"cache":"c","key":"v"}`, 400, "invalid_argument", `value is missing`},
	{values + "Put", `{"cache":"c","key":"v","value":"a","valueBytes":"YQ=="}`, 400, "invalid_argument", `valueBytes`},
	{values + "Put", `{"cache":"c","key":"v","value":"a","ifAbsent":true,"ifVersion":"1"}`, 400, "invalid_argument", `ifVersion`},
	{values + "Put", `{"cache":"c","key":"v","value":"a","expiresInMillis":"0"}`, 400, "invalid_argument", `expire`},
	{values + "Put", `{"cache":"c","value":"a"}`, 400, "invalid_argument", `the key is empty`},
	{values + "Put", `{"cache":"c","key":"v","value":"a","ttl":"5"}`, 400, "invalid_argument", `unknown field`},
	{values + "Put", `{"cache":"none","key":"v","value":"a"}`, 404, "cache_not_found", `none`},
	{values + "Get", `{"cache":"none","key":"v"}`, 404, "cache_not_found", `none`},
	{values + "Delete", `{"key":"v"}`, 400, "invalid_argument", `cache name is empty`},
	{values + "Put", `{"cache":"c","key":"large","value":"` + strings.Repeat("v", felix.MaxValueBytes+1) + `"}`, 400, "invalid_argument", `the value`},
	{values + "Put", `{"cache":"c","key":"large","value":"` + strings.Repeat("v", felix.MaxValueBytes) + `"}`, 200, "", `"applied":true`},
	{values + "Get", `{"cache":"c","key":"large"}`, 200, "", strings.Repeat("v", felix.MaxValueBytes)},
}

// Broken: each case of putOf, the condition of Delete.
func TestValues(t *testing.T) { playJSON(t, valueSession) }
