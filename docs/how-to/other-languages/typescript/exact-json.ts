/** A payload converter that keeps all digits: JSON.parse reads 9007199254740993 as …992 and 12.10 as 12.1. */

import { CompositePayloadConverter, METADATA_ENCODING_KEY, UndefinedPayloadConverter } from '@temporalio/common';
import type { Payload, PayloadConverterWithEncoding } from '@temporalio/common';
import { parse, stringify } from 'lossless-json';

/** Numbers are read as LosslessNumber, whose `value` has the digits; bigint and LosslessNumber are written exactly. */
export function read<T>(text: string): T {
  return parse(text) as T;
}

export function write(value: unknown): string {
  const text = stringify(value);
  if (text === undefined) {
    throw new TypeError(`not JSON: ${String(value)}`);
  }
  return text;
}

class ExactJson implements PayloadConverterWithEncoding {
  encodingType = 'json/plain';

  toPayload(value: unknown): Payload {
    return { metadata: { [METADATA_ENCODING_KEY]: Buffer.from(this.encodingType) }, data: Buffer.from(write(value)) };
  }

  fromPayload<T>(payload: Payload): T {
    return read<T>(Buffer.from(payload.data ?? []).toString('utf8'));
  }
}

/** The name that the SDK looks for in the file. */
export const payloadConverter = new CompositePayloadConverter(new UndefinedPayloadConverter(), new ExactJson());
