// Preloaded into the conformance suite (`node --import`), which has no option for headers: adds
// `Authorization` from DRAWBRIDGE_TOKEN to every request to DRAWBRIDGE_ORIGIN, whoever sends it.
import { getGlobalDispatcher, setGlobalDispatcher } from 'undici';

const { DRAWBRIDGE_TOKEN: token, DRAWBRIDGE_ORIGIN: wanted } = process.env;

/** Header fields come as a flat list, as pairs or as an object. */
function authorized(headers) {
  const value = `Bearer ${token}`;
  if (Array.isArray(headers)) return [...headers, 'authorization', value];
  if (headers && Symbol.iterator in headers) return [...headers, ['authorization', value]];
  return { ...headers, authorization: value };
}

setGlobalDispatcher(
  getGlobalDispatcher().compose((dispatch) => (options, handler) => {
    const isOurs = new URL(options.origin).origin === wanted;
    return dispatch(isOurs ? { ...options, headers: authorized(options.headers) } : options, handler);
  }),
);
